from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models

from crammed.config import Ordering
from crammed.data.preparing.pack.order import (
    ScoreJob,
    permutation,
    score_file,
    score_rows,
    store,
    token_values,
)
from crammed.errors import InputError
from support.corpora import SPECIALS, VOCABULARY, small_tokenizer

V = len(VOCABULARY)
ORDINARY = st.integers(len(SPECIALS), V - 1)
ROWS = st.integers(1, 12).flatmap(
    lambda length: st.lists(st.lists(ORDINARY, min_size=length, max_size=length), min_size=1)
)


def ids(*tokens: str) -> list[int]:
    return [VOCABULARY[token] for token in tokens]


def scores(
    name: Ordering, rows: list[list[int]], counts: NDArray[np.int64] | None = None
) -> list[int]:
    counts = np.ones(V, np.int64) if counts is None else counts
    values = token_values(name, small_tokenizer(), counts, 6)
    found: list[int] = score_rows(np.array(rows, np.uint16), values).tolist()
    return found


def test_sentence_length_counts_full_stops() -> None:
    rows = [ids("the", "fox", ".", "the"), ids(".", "[SEP]", "a", "."), ids("a", "!", ",", "[CLS]")]
    assert scores("sentence-length", rows) == [-1, -2, 0]


def test_fragments_counts_separators() -> None:
    rows = [ids("the", "[SEP]", "."), ids("[SEP]", "a", "[SEP]"), ids("[CLS]", "a", ".")]
    assert scores("fragments", rows) == [-1, -2, 0]
    assert scores("long-documents", rows) == [1, 2, 0]


@given(ROWS)
def test_common_first_is_the_mean_log_probability(rows: list[list[int]]) -> None:
    counts = np.zeros(V, np.int64)
    for token, count in Counter(token for row in rows for token in row).items():
        counts[token] = count
    expected = -np.log2((counts + 1) / (counts.sum() + V))[np.array(rows)].mean(axis=1)
    bits = np.array(scores("common-first", rows, counts)) / len(rows[0]) / 4096
    np.testing.assert_allclose(bits, expected, atol=1 / 4096)
    rare = scores("rare-first", rows, counts)
    assert rare == [-score for score in scores("common-first", rows, counts)]


@given(ROWS)
def test_word_length_is_the_length_of_the_decoded_text(rows: list[list[int]]) -> None:
    tokenizer = small_tokenizer()
    whole = [ids("the") + row for row in rows]  # decoding spares a first word its space
    lengths = [len(tokenizer.decode(row, skip_special_tokens=False)) + 1 for row in whole]
    assert scores("word-length", whole) == lengths


def test_word_length_of_byte_level_pieces() -> None:
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, "the", "Ġfox", "es"))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    ones = np.ones(len(vocabulary), np.int64)
    values = token_values("word-length", tokenizer, ones, 6)
    assert values[len(SPECIALS) :].tolist() == [3, 4, 2]
    with pytest.raises(InputError, match=r"no order sentence-length.*'\.'"):
        token_values("sentence-length", tokenizer, ones, 6)


def test_a_file_is_scored_for_every_order(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, V, (20, 6), np.uint16)
    rows.tofile(tmp_path / "rows-00000.bin")
    counts = np.bincount(rows.flatten(), minlength=V)
    names: tuple[Ordering, ...] = get_args(Ordering)
    values = {name: token_values(name, small_tokenizer(), counts, 6) for name in names}
    found = score_file(ScoreJob(tmp_path / "rows-00000.bin", 6, values))
    assert {name: each.tolist() for name, each in found.items()} == {
        name: scores(name, rows.tolist(), counts) for name in names
    }


def test_long_rows_do_not_overflow_and_a_name_counts_once(tmp_path: Path) -> None:
    length = 2**17
    names: tuple[Ordering, ...] = ("common-first", "rare-first", "common-first")
    rows = np.repeat(np.array([ids("fox"), ids("the")], np.uint16), length, axis=1)
    rows.tofile(tmp_path / "rows-00000.bin")
    counts = np.array([2**20 if token == "the" else 0 for token in VOCABULARY])
    store(tmp_path, names, length, small_tokenizer(), counts, partial(map, score_file))
    for name, order in (("common-first", [1, 0]), ("rare-first", [0, 1])):
        assert np.fromfile(tmp_path / f"order-{name}.bin", np.uint32).tolist() == order


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2), min_size=1, max_size=60))
def test_lowest_scores_come_first(given: list[int]) -> None:
    scores = np.array(given, np.int32)
    order = permutation(scores, "fragments")
    assert sorted(order.tolist()) == list(range(len(given)))
    assert scores[order].tolist() == sorted(given)


def test_ties_are_shuffled_by_name() -> None:
    ties = np.zeros(500, np.int32)
    order = permutation(ties, "fragments").tolist()
    assert order != sorted(order)
    assert order == permutation(ties, "fragments").tolist()
    assert order != permutation(ties, "word-length").tolist()
    assert permutation(ties, "fragments").dtype == np.dtype("<u4")
