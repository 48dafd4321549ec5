"""Finds texts of evaluation tasks in text to train on.

A model that has already read the text it is tested on scores higher than it should.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import DownstreamConfig
from crammed.data.preparing.cleaning.words import (
    FACTOR,
    Hashes,
    Screen,
    hashes_of,
    mixed,
    words_of,
)
from crammed.errors import InputError
from crammed.tasks.texts import digest_of, texts_of

SHORTEST = 10
"""Words; shorter texts may occur anywhere without having been copied."""

_BATCH = 4_000_000
"""Characters of the tasks to look at together."""
_INVERSE = np.uint64(pow(int(FACTOR), -1, 1 << 64))

_Integers = NDArray[np.int64]
_Passages = tuple[Hashes, Hashes, _Integers]
"""Of each passage the hash of its words, of its first `SHORTEST` words, and their number."""


def downstream_settings(suites: Sequence[DownstreamConfig]) -> list[dict[str, Any]]:
    """The settings, with the data of each suite replaced by a hash of its content.

    Raises:
        InputError: there is no such suite or no data.
    """
    located = (each.absolute() for each in suites)
    return [
        {**each.without_folders(), "data": digest_of(each.suite, each.data)} for each in located
    ]


class Downstream:
    """Finds texts of `SHORTEST` or more words in documents, or passages of them.

    Words are compared as `words_of` has them. Takes 24 bytes of memory for each distinct text, or
    for each of its words if passages are looked for, and three times as much while they are read.
    """

    def __init__(self, suites: Sequence[DownstreamConfig]) -> None:
        """Read the texts of some suites.

        Raises:
            InputError: there is no such suite or no data, it holds no text that is long enough, or
                it cannot be read.
        """
        passages = _distinct(part for suite in suites for part in _read(suite))
        order = np.argsort(passages[1], kind="stable")
        self._wholes, self._firsts = passages[0][order], passages[1][order]
        self._lengths = passages[2][order]
        self._screen = Screen(self._firsts)

    def occurs_in(self, text: str) -> bool:
        """Whether any of the passages occurs in a document."""
        words = _Words(words_of(text))
        starts = np.arange(words.count - SHORTEST + 1)
        firsts = words.hashes(starts, starts + SHORTEST)
        starts = np.flatnonzero(self._screen(firsts))
        firsts = firsts[starts]
        at = np.searchsorted(self._firsts, firsts)
        while True:  # passages with the same first words are neighbours
            same = self._firsts[np.minimum(at, len(self._firsts) - 1)] == firsts
            same &= at < len(self._firsts)
            starts, firsts, at = starts[same], firsts[same], at[same]
            if not len(at):
                return False
            ends = starts + self._lengths[at]
            inside = ends <= words.count
            found = words.hashes(starts[inside], ends[inside])
            if (found == self._wholes[at[inside]]).any():
                return True
            at = at + 1


class _Words:
    """Words whose passages of any length can be hashed at once."""

    def __init__(self, words: Sequence[str]) -> None:
        self.count = len(words)
        factors = np.cumprod(np.full(self.count, FACTOR)) * _INVERSE
        self._sums = np.append(np.uint64(0), np.cumsum(hashes_of(words) * factors))
        self._inverses = np.cumprod(np.full(self.count, _INVERSE)) * FACTOR

    def hashes(self, starts: _Integers, ends: _Integers) -> Hashes:
        """Hash of the words from each start up to its end, by prefix sums."""
        return mixed((self._sums[ends] - self._sums[starts]) * self._inverses[starts])


def _read(suite: DownstreamConfig) -> Iterator[_Passages]:
    """The passages to look for, some at a time."""
    batch: list[list[str]] = []
    size = found = 0
    for text in texts_of(suite.suite, suite.data):
        words = words_of(text)
        if len(words) >= SHORTEST:
            found += 1
            batch.append(words)
            size += len(text)
        if size > _BATCH:
            yield _passages(batch, suite.words)
            batch, size = [], 0
    if not found:
        raise InputError(
            f"{suite.data}: suite {suite.suite} has no text of {SHORTEST} words or more: leave "
            "it out"
        )
    yield _passages(batch, suite.words)


def _passages(texts: Sequence[Sequence[str]], most: int | None) -> _Passages:
    """The passages of some texts with `most` words, and shorter texts, or all texts, as a whole."""
    words = _Words([word for text in texts for word in text])
    whole = np.fromiter(map(len, texts), np.int64, len(texts))
    lengths = whole if most is None else np.minimum(whole, most)
    counts = whole - lengths + 1
    begins = np.cumsum(whole) - whole - (np.cumsum(counts) - counts)
    starts = np.repeat(begins, counts) + np.arange(counts.sum())
    lengths = np.repeat(lengths, counts)
    return words.hashes(starts, starts + lengths), words.hashes(starts, starts + SHORTEST), lengths


def _distinct(parts: Iterator[_Passages]) -> _Passages:
    """Every passage once; those that wait to be compared are not more than those that are."""
    passages: list[_Passages] = []
    distinct = waiting = 0
    for part in parts:
        passages.append(part)
        waiting += len(part[0])
        if waiting > distinct:
            passages, waiting = [_unique(passages)], 0
            distinct = len(passages[0][0])
    return _unique(passages)


def _unique(passages: Sequence[_Passages]) -> _Passages:
    wholes, firsts, lengths = (np.concatenate(each) for each in zip(*passages, strict=True))
    wholes, kept = np.unique(wholes, return_index=True)
    return wholes, firsts[kept], lengths[kept]
