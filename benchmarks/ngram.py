"""A floor for held-out loss: masked tokens guessed from counts of n-grams, without training.

    python benchmarks/ngram.py CORPUS --data HELDOUT.jsonl.gz [--tokens 1e7] [--out FILE]

A masked token's probability comes from what the corpus has at such a place: between the same two
tokens on the left and two on the right, if it has that, else between fewer, and at last in
proportion to P(token | left) P(token | right) / P(token). The levels are interpolated by absolute
discounting (Ney, Essen and Kneser 1994). Neighbours that are masked themselves are not used. Rows
and masks are those of heldout_masked_lm.py. With --tokens, only so many are counted, in rows drawn
at random.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from common import Json, finish, run
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_rows
from crammed.errors import InputError
from crammed.runs.environment import environment
from heldout_masked_lm import RATES, masked_positions

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

DISCOUNT = 0.75
"""Taken from each count and given to the level below."""
PLACES = (-2, -1, 1, 2)
"""Of a token's neighbours; each level below uses some of them."""
LEVELS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((-1, 1), ()),
    ((-2, -1, 1), (0,)),
    ((-1, 1, 2), (0,)),
    ((-2, -1, 1, 2), (1, 2)),
)
"""The neighbours of each level, and the levels whose mean is below it; () is the product."""
MOST_TOKENS = 16_384
"""Largest vocabulary: the counts of pairs are a table."""
ROWS_AT_ONCE, GAPS_AT_ONCE = 1 << 15, 1 << 10
UNKNOWN = -1
"""A neighbour that is masked or beyond the row."""


class Gaps:
    """Masked tokens and what is known about their neighbours.

    Args:
        rows: [R, S] ids.
        masks: each [R, N], masked positions of these rows; those of one do not mask for another.

    Attributes:
        tokens: [M], those of the first masks first.
        around: place -> [M] neighbours there, or `UNKNOWN`.
    """

    def __init__(self, rows: Ids, masks: Sequence[Ids]) -> None:
        edge = max(PLACES)
        tokens, around = [], {place: list[Ids]() for place in PLACES}
        for positions in masks:
            tokens.append(np.take_along_axis(rows, positions, 1).ravel())
            seen = np.pad(rows, ((0, 0), (edge, edge)), constant_values=UNKNOWN)
            np.put_along_axis(seen, positions + edge, UNKNOWN, 1)
            for place, neighbours in around.items():
                found = np.take_along_axis(seen, positions + edge + place, 1)
                neighbours.append(found.ravel())
        self.tokens = np.concatenate(tokens)
        self.around = {place: np.concatenate(found) for place, found in around.items()}

    def keys(self, places: Sequence[int], vocabulary: int) -> Ids:
        """One number for the neighbours at these places, [M]; `UNKNOWN` if any is unknown."""
        known = np.all([self.around[place] != UNKNOWN for place in places], axis=0)
        return np.where(known, _joined([self.around[p] for p in places], vocabulary), UNKNOWN)


class Level:
    """Counts of the tokens that the corpus has between certain neighbours."""

    def __init__(self, places: Sequence[int], gaps: Gaps, vocabulary: int) -> None:
        self._places, self._vocabulary = places, vocabulary
        self._wanted, self._at = np.unique(gaps.keys(places, vocabulary), return_inverse=True)
        self._counts = csr_matrix((len(self._wanted), vocabulary), dtype=np.int64)

    def count(self, rows: Ids) -> None:
        """Count what is in these rows [R, S], where neighbours are those of a gap."""
        inner = slice(max(PLACES), rows.shape[1] - max(PLACES))
        here = np.arange(rows.shape[1])[inner]
        keys = _joined([rows[:, here + p] for p in self._places], self._vocabulary)
        at = np.searchsorted(self._wanted, keys).clip(max=len(self._wanted) - 1)
        found = self._wanted[at] == keys
        places = at[found], rows[:, inner][found]
        once = np.ones(len(places[0]), np.int64)
        self._counts += csr_matrix((once, places), self._counts.shape)  # adds up what repeats

    def probabilities(self, tokens: Ids, below: Floats) -> Floats:
        """P(token | neighbours) of the tokens in the gaps, given that of the level below, [M]."""
        totals = np.asarray(self._counts.sum(1)).ravel()[self._at]
        kinds = self._counts.getnnz(1)[self._at]
        own = np.asarray(self._counts[self._at, tokens]).ravel()
        return _discounted(own, totals, kinds, below)


class Pairs:
    """P(token | left) P(token | right) / P(token), normalized, from counts of adjacent tokens."""

    def __init__(self, vocabulary: int) -> None:
        self._counts = np.zeros((vocabulary, vocabulary), np.int32)

    def count(self, rows: Ids) -> None:
        size = len(self._counts)
        codes, counts = np.unique(rows[:, :-1] * size + rows[:, 1:], return_counts=True)
        self._counts.ravel()[codes] += counts.astype(np.int32)

    def probabilities(self, gaps: Gaps) -> Floats:
        """P(token) of the tokens in the gaps, [M]; without a neighbour, that of the others."""
        unigram = self._counts.sum(0, dtype=np.float64) + 1.0
        unigram /= unigram.sum()
        left, right = self._counts, self._counts.T
        found = np.empty(len(gaps.tokens))
        for begin in range(0, len(found), GAPS_AT_ONCE):
            part = slice(begin, begin + GAPS_AT_ONCE)
            logs = np.log(unigram) + sum(
                np.log(_beside(table, gaps.around[place][part], unigram) / unigram)
                for table, place in ((left, -1), (right, 1))
            )
            logs -= logs.max(1, keepdims=True)
            own = np.take_along_axis(logs, gaps.tokens[part, None], 1)[:, 0]
            found[part] = np.exp(own - np.log(np.exp(logs).sum(1)))
        return found


def _beside(counts: NDArray[np.int32], neighbours: Ids, unigram: Floats) -> Floats:
    """P(token | neighbour) from counts [V, V] by neighbour and token, [N, V]."""
    own = np.where((neighbours != UNKNOWN)[:, None], counts[neighbours], 0)
    kinds = np.count_nonzero(own, 1)[:, None]
    return _discounted(own, own.sum(1, keepdims=True), kinds, unigram)


def _discounted(
    counts: NDArray[Any], totals: NDArray[Any], kinds: NDArray[Any], below: Floats
) -> Floats:
    """Probabilities from counts, of so many in all and of different kinds; else those below."""
    mixed = np.maximum(counts - DISCOUNT, 0) + DISCOUNT * kinds * below
    return np.where(totals > 0, mixed / np.maximum(totals, 1), below)


def _joined(ids: Sequence[Ids], vocabulary: int) -> Ids:
    """Several ids as one number."""
    joined = np.zeros_like(ids[0])
    for each in ids:
        joined = joined * vocabulary + each
    return joined


def probabilities(rows: Iterator[Ids], gaps: Gaps, vocabulary: int) -> Floats:
    """The probability of each masked token, [M], from counts of the rows of a corpus."""
    pairs = Pairs(vocabulary)
    levels = [Level(places, gaps, vocabulary) for places, _ in LEVELS]
    for part in rows:
        pairs.count(part)
        for level in levels:
            level.count(part)
    product = pairs.probabilities(gaps)
    found: list[Floats] = []
    for level, (_, lower) in zip(levels, LEVELS, strict=True):
        below = np.mean([found[number] for number in lower], 0) if lower else product
        found.append(level.probabilities(gaps.tokens, below))
    return found[-1]


def main(
    corpus: Path,
    data: Annotated[Path, typer.Option(help="JSON lines (.gz) with a field text.")],
    tokens: Annotated[float, typer.Option(help="How many to count.")] = math.inf,
    rows: Annotated[int, typer.Option(min=1, help="Held-out rows, at most.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="File for the result, JSON.")] = None,
) -> None:
    """Measure the held-out loss of counts of n-grams."""
    began, opened = time.monotonic(), Corpus(corpus)
    vocabulary = opened.vocab_size
    if vocabulary > MOST_TOKENS:
        raise InputError(
            f"{corpus} has {vocabulary:,} tokens in its vocabulary, over {MOST_TOKENS:,}"
        )
    heldout = heldout_rows(opened.tokenizer, data, rows, opened.row_length, framed=True)
    masks = [masked_positions(heldout.ids.shape, rate) for rate in RATES]
    if not tokens >= opened.row_length:
        raise InputError(f"--tokens: {tokens:g} is less than a row of {opened.row_length}")
    counted = int(min(opened.rows, tokens // opened.row_length))
    order = np.random.default_rng(0).permutation(opened.rows)[:counted]
    parts = (
        opened.read(np.sort(part)) for part in np.array_split(order, -(-counted // ROWS_AT_ONCE))
    )
    found = probabilities(parts, Gaps(heldout.ids, masks), vocabulary)
    result: Json = {"corpus": opened.sha256, "tokens": counted * opened.row_length}
    ends = np.cumsum([positions.size for positions in masks])[:-1]
    for rate, each in zip(RATES, np.split(found, ends), strict=True):
        loss = -float(np.log(each).mean())
        result[f"loss@{rate}"] = loss
        result[f"bits_per_character@{rate}"] = loss * heldout.tokens_per_character / math.log(2)
    result |= {"seconds": time.monotonic() - began, "environment": environment()}
    finish(result, out)


if __name__ == "__main__":
    run(main)
