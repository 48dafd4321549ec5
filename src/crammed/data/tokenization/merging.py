"""Trains WordPiece's vocabulary on words with counts (Schuster and Nakajima 2012).

The trainer of `tokenizers` takes text instead of counts, so it would have to read each word as
often as it occurs, which takes most of its time. This one gives the same vocabulary and ids.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import pairwise

CONTINUES = "##"
"""What WordPiece writes before a piece that is not the first of its word."""
_BITS = 32
_LAST = (1 << _BITS) - 1


def word_pieces(
    words: Mapping[str, int],
    special: Sequence[str],
    alphabet: Sequence[str],
    continuing: Sequence[str],
    size: int,
    fewest: int = 2,
) -> dict[str, int]:
    """The vocabulary: pieces and their ids, which ascend from 0.

    The most frequent pair of neighbouring pieces becomes a piece, until there are enough; of
    equally frequent pairs, the one with the lowest ids. Characters that are not given are skipped.

    Args:
        words: how often each occurs.
        special: tokens with the first ids.
        alphabet: characters that may begin a word.
        continuing: those that may continue one.
        size: entries of the vocabulary.
        fewest: how often a pair must occur.
    """
    pieces = [*special, *(CONTINUES + letter for letter in continuing), *alphabet]
    ids = {piece: number for number, piece in enumerate(pieces)}
    with _no_collector():
        pairs = _Pairs(words, ids)
        while len(pieces) < size and (found := pairs.most_frequent(fewest)) is not None:
            first, second, places = found
            piece = pieces[first] + pieces[second].removeprefix(CONTINUES)
            if piece not in ids:  # else other pairs have made it already
                ids[piece] = len(pieces)
                pieces.append(piece)
            pairs.merge(first, second, ids[piece], places)
    return ids


class _Pairs:
    """The pairs of neighbouring pieces in all words, two numbers in one integer each.

    As in the library, a queue holds each pair with its frequency when it was put there and some of
    the words that hold it. A pair that comes up again in further words is there once more.
    """

    def __init__(self, words: Mapping[str, int], ids: Mapping[str, int]) -> None:
        self._counts = list(words.values())
        self._words = [list(_letters(word, ids)) for word in words]
        self._frequency: defaultdict[int, int] = defaultdict(int)
        places: dict[int, list[int]] = {}
        for number, (word, count) in enumerate(zip(self._words, self._counts, strict=True)):
            for first, second in pairwise(word):
                pair = first << _BITS | second
                self._frequency[pair] += count
                _add(places, pair, number)
        self._queue = [(-self._frequency[pair], pair, found) for pair, found in places.items()]
        heapify(self._queue)

    def most_frequent(self, fewest: int) -> tuple[int, int, list[int]] | None:
        """The two pieces of the most frequent pair and the words that hold it, if often enough."""
        while self._queue:
            before, pair, places = heappop(self._queue)
            if (frequency := self._frequency[pair]) == -before:
                return (pair >> _BITS, pair & _LAST, places) if frequency >= fewest else None
            heappush(self._queue, (-frequency, pair, places))
        return None

    def merge(self, first: int, second: int, piece: int, places: Iterable[int]) -> None:
        """Put a piece in place of a pair in some words."""
        frequency, fresh = self._frequency, dict[int, list[int]]()
        for number in places:
            word, count = self._words[number], self._counts[number]
            at, last = 0, len(word) - 1
            while at < last:
                if word[at] == first and word[at + 1] == second:
                    word[at : at + 2] = (piece,)
                    last -= 1
                    if at:
                        before = word[at - 1] << _BITS
                        frequency[before | first] -= count
                        frequency[before | piece] += count
                        _add(fresh, before | piece, number)
                    if at < last:
                        after = word[at + 1]
                        frequency[second << _BITS | after] -= count
                        frequency[piece << _BITS | after] += count
                        _add(fresh, piece << _BITS | after, number)
                at += 1
        for pair, found in fresh.items():
            if frequency[pair] > 0:
                heappush(self._queue, (-frequency[pair], pair, found))


def _letters(word: str, ids: Mapping[str, int]) -> Iterator[int]:
    """The ids of a word's characters, without those that have none."""
    for letter in (word[:1], *(CONTINUES + letter for letter in word[1:])):
        if letter in ids:
            yield ids[letter]


def _add(places: dict[int, list[int]], pair: int, number: int) -> None:
    """Add a word to those of a pair; words come in order."""
    if (found := places.get(pair)) is None:
        places[pair] = [number]
    elif found[-1] != number:
        found.append(number)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without the search for cycles, of which these lists have none: it would take a third more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
