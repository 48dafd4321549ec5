"""The floor of the contests: counts of n-grams, beside a slow twin."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crammed.data.corpus import Corpus
from crammed.errors import InputError

VOCABULARY = 5


def test_probabilities_agree_with_counting_token_by_token(benchmark: Callable[[str], Any]) -> None:
    ngram = benchmark("ngram")
    draw = np.random.default_rng(0)
    corpus = draw.integers(0, VOCABULARY - 1, (60, 12))  # the last token never occurs
    rows = draw.integers(0, VOCABULARY, (6, 12))
    masks = [draw.random(rows.shape).argsort(1)[:, :count] for count in (2, 5)]
    gaps = ngram.Gaps(rows, masks)
    found = ngram.probabilities(iter(np.array_split(corpus, 7)), gaps, VOCABULARY)
    slow = [
        _distribution(ngram, corpus, rows[row], set(columns), int(column))
        for positions in masks
        for row, columns in enumerate(positions.tolist())
        for column in columns
    ]
    np.testing.assert_allclose([each.sum() for each in slow], 1.0)
    expected = [each[token] for each, token in zip(slow, gaps.tokens, strict=True)]
    np.testing.assert_allclose(found, expected)


def test_a_corpus_is_counted_or_a_part_of_it(
    benchmark: Callable[[str], Any], corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    ngram = benchmark("ngram")
    few = 4 * corpus.row_length
    losses = {}
    for tokens in (few, 1e9):
        ngram.main(corpus.path, corpus.heldout, tokens)
        result = json.loads(capsys.readouterr().out)
        losses[result["tokens"]] = result["loss@0.15"]
    assert losses.keys() == {few, corpus.rows * corpus.row_length}
    assert losses[few] > losses[corpus.rows * corpus.row_length] > 0.0
    for tokens in (0.0, math.nan):
        with pytest.raises(InputError, match="is less than a row of"):
            ngram.main(corpus.path, corpus.heldout, tokens)


def _distribution(
    ngram: Any, corpus: NDArray[np.int64], row: NDArray[np.int64], masked: set[int], at: int
) -> NDArray[Any]:
    """P(token) at one place of a row, [V], by the module's definition."""

    def neighbours(places: tuple[int, ...]) -> tuple[int, ...] | None:
        there = [at + place for place in places]
        known = all(0 <= p < len(row) and p not in masked for p in there)
        return tuple(row[there].tolist()) if known else None

    def discounted(counts: Counter[int], below: NDArray[Any]) -> NDArray[Any]:
        if not counts:
            return below
        kept = [max(counts[token] - ngram.DISCOUNT, 0.0) for token in range(VOCABULARY)]
        mixed: NDArray[Any] = (
            np.array(kept) + ngram.DISCOUNT * len(counts) * below
        ) / counts.total()
        return mixed

    def between(places: tuple[int, ...], inside: range) -> Counter[int]:
        wanted = neighbours(places)
        return Counter(
            int(each[place])
            for each in corpus
            for place in inside
            if tuple(each[[place + p for p in places]].tolist()) == wanted
        )

    second = corpus[:, 1:].ravel()
    unigram = np.bincount(second, minlength=VOCABULARY) + 1.0
    unigram /= unigram.sum()
    product = unigram.copy()
    for place, inside in ((-1, range(1, 12)), (1, range(11))):
        product *= discounted(between((place,), inside), unigram) / unigram
    found: list[NDArray[Any]] = []
    for places, lower in ngram.LEVELS:
        below = np.mean([found[n] for n in lower], 0) if lower else product / product.sum()
        found.append(discounted(between(places, range(2, 10)), below))
    return found[-1]
