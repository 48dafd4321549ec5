"""A document that is packed several times lies in a row once: its copies are far apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.preparing.pack.packing_job import packing_groups, spread_copies
from crammed.data.tokenization.tokenizer import SEP
from crammed.errors import InputError
from support.corpora import prepared
from support.text import documents, tiny, write_jsonl


def made(tmp_path: Path, *sources: dict[str, Any]) -> Corpus:
    return prepared(tmp_path / "made", list(sources), "compute.workers=1")


def distances(corpus: Corpus) -> list[int]:
    """Between the copies of every document that occurs whole more than once, in rows."""
    stream = corpus.read(np.arange(corpus.rows)).flatten()
    ends = np.flatnonzero(stream == SEP)
    places: dict[bytes, list[int]] = {}
    for begin, end in pairwise(ends.tolist()):
        places.setdefault(stream[begin + 1 : end].tobytes(), []).append(begin + 1)
    return [
        later // corpus.row_length - earlier // corpus.row_length
        for each in places.values()
        for earlier, later in pairwise(each)
    ]


def test_copies_are_half_a_corpus_apart(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "text.jsonl", documents(300))
    corpus = made(tmp_path, {"path": str(source), "weight": 2.0})
    apart = distances(corpus)
    assert len(apart) > 200
    assert min(apart) > 0.4 * corpus.rows


def test_copies_from_small_files_are_apart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is a shard, and most have less than a row; groups have half of the files."""
    texts = documents(200)
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", sum(map(len, texts)) // 2)
    for number, text in enumerate(texts):
        write_jsonl(tmp_path / "files" / f"{number:03d}.jsonl", [text])
    corpus = made(tmp_path, {"path": str(tmp_path / "files"), "weight": 2.5})
    apart = distances(corpus)
    assert len(apart) > 200
    assert min(apart) > 0.1 * corpus.rows


def test_a_short_source_with_a_large_weight_is_spread_over_the_others(tmp_path: Path) -> None:
    large = write_jsonl(tmp_path / "large.jsonl", documents(800))
    poem = write_jsonl(tmp_path / "poem.jsonl", documents(2, seed=1))
    corpus = made(tmp_path, {"path": str(large)}, {"path": str(poem), "weight": 40.0})
    by_name = {source["name"]: source["documents"] for source in corpus.manifest["sources"]}
    assert by_name["poem.jsonl"] in (40, 80)  # one of the two may be held out
    apart = distances(corpus)
    assert len(apart) >= 38
    assert min(apart) > 0.5 * corpus.rows / 40


def test_weights_up_to_one_leave_the_order_as_it_is() -> None:
    lengths, repeats = np.array([5, 1, 7, 3]), np.array([1, 1, 0, 1])
    assert spread_copies(lengths, repeats).tolist() == [0, 1, 3]
    assert packing_groups([10, 10**9, 3], repeated=False) == [[0], [1], [2]]
    assert spread_copies(lengths, 0 * repeats).tolist() == []


@given(
    lengths=st.lists(st.integers(1, 500), min_size=2, max_size=60),
    times=st.integers(2, 9),
)
def test_between_two_copies_lies_every_other_document(lengths: list[int], times: int) -> None:
    order = spread_copies(np.array(lengths), np.full(len(lengths), times)).tolist()
    assert sorted(order) == sorted(times * list(range(len(lengths))))
    for number in range(len(lengths)):
        places = [place for place, each in enumerate(order) if each == number]
        for one, other in pairwise(places):
            assert len(set(order[one + 1 : other])) >= len(lengths) - 2


def test_small_shards_are_packed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 10)
    assert packing_groups([4, 4, 4, 10, 12, 3, 2], repeated=True) == [[0, 1, 2], [3], [4, 5, 6]]
    assert packing_groups([3], repeated=True) == [[0]]
    assert packing_groups([12], repeated=True) == [[0]]


def test_a_weight_that_cannot_be_counted_is_refused() -> None:
    assert tiny(data={"sources": [{"path": "x", "weight": 65_535}]})
    with pytest.raises(InputError, match=r"weight.*less than or equal to 65535"):
        tiny(data={"sources": [{"path": "x", "weight": 65_536}]})


def test_a_weight_that_leaves_no_document_is_refused(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(3))
    with pytest.raises(InputError, match="holds no text: no document is left"):
        made(tmp_path, {"path": str(text), "weight": 0.01})
