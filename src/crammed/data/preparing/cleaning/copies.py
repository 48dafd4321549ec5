"""Finds documents that repeat held-out text.

A document is compared by its runs: every 13 consecutive words (`words_of`). A document of fewer
words is a single run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from crammed.data.preparing.cleaning.words import words_of
from crammed.data.tokenization.chunks import ChunkedText

RUN = 13
"""Words in a run, as in the comparison of training and test data by Brown et al. (2020)."""
MOST_DOCUMENTS = 10
"""A run in more documents than this is a licence, a header or a template rather than a copy."""
COPIED_SHARE = 0.2
"""A document is a copy if runs shared with held-out text make up this share of its words."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FEWEST_BITS, _MOST_BITS = 16, 26

Hashes = NDArray[np.uint64]
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """The runs of some documents.

    Attributes:
        hashes: [N] hash of each run.
        places: [N] number of its first word, counted over all documents.
        ends: [D] number of words up to the end of each document.
    """

    hashes: Hashes
    places: _Integers
    ends: _Integers

    @classmethod
    def of(cls, text: ChunkedText) -> Runs:
        """The runs of chunked text; takes about 40 bytes of memory for each word."""
        words, ends = _hashed_words(text)
        across = np.zeros(len(words), np.bool_)  # runs that would continue into the next document
        for words_left in range(1, RUN):
            across[(ends - words_left)[ends >= words_left]] = True
        hashes = _joined(words, np.arange(max(0, len(words) - RUN + 1)), RUN)
        within = np.flatnonzero(~across[: len(hashes)])
        found = [(hashes[within], within.astype(np.int64))]
        lengths = np.diff(ends, prepend=0)
        for length in range(1, RUN):
            places = (ends - length)[lengths == length]
            found.append((_joined(words, places, length), places))
        every, places = map(np.concatenate, zip(*found, strict=True))
        return cls(every, places, ends)


def _hashed_words(text: ChunkedText) -> tuple[Hashes, _Integers]:
    """Hashes of the words of all documents, joined, and the number of words up to each end."""
    by_chunk = [[crc32(word.encode()) for word in words_of(chunk)] for chunk in text.unique]
    hashes = np.fromiter(chain.from_iterable(by_chunk), np.uint64)
    counts = np.fromiter(map(len, by_chunk), np.int64, len(by_chunk))
    starts = np.cumsum(counts) - counts
    here = counts[text.codes]
    ends = np.concatenate([[0], np.cumsum(here)])
    # The word at place p, in chunk number c, is at p - ends[c] + its chunk's start.
    places = np.repeat(starts[text.codes] - ends[:-1], here) + np.arange(ends[-1])
    return hashes[places], ends[text.ends]


def _joined(words: Hashes, places: _Integers, length: int) -> Hashes:
    """Hash of the `length` words that begin at each place; it also depends on `length`."""
    hashes = np.full(len(places), length, np.uint64)
    for n in range(length):
        hashes *= _FACTOR
        hashes += words[n : n + len(places)] if length == RUN else words[places + n]
    return (hashes ^ (hashes >> np.uint64(32))) * _FACTOR


@dataclass(frozen=True)
class Matches:
    """Where documents share runs with held-out text.

    Attributes:
        documents: [M] number of the document, ascending.
        places: [M] as in `Runs`, ascending.
        runs: [M] number of the run among all held-out runs.
        words: [D] number of words of each document.
    """

    documents: _Integers
    places: _Integers
    runs: _Integers
    words: _Integers

    def spread(self) -> tuple[_Integers, _Integers]:
        """The runs that occur, and how many documents each occurs in."""
        runs = self.runs.max(initial=0) + 1
        return np.unique(np.unique(self.documents * runs + self.runs) % runs, return_counts=True)

    def of_runs(self, kept: NDArray[np.bool_]) -> Matches:
        """The matches with those held-out runs that `kept` [runs] marks."""
        own = kept[self.runs]
        return Matches(self.documents[own], self.places[own], self.runs[own], self.words)

    def copies(self) -> _Integers:
        """The documents with `COPIED_SHARE` or more of their words in matching runs, ascending."""
        lengths = np.minimum(RUN, self.words[self.documents])
        goes_on = np.append(self.documents[1:] == self.documents[:-1], False)[: len(lengths)]
        steps = np.diff(self.places, append=0)
        covered = np.where(goes_on, np.minimum(steps, lengths), lengths)
        shared = np.bincount(self.documents, covered, len(self.words))
        return np.flatnonzero((shared > 0) & (shared >= COPIED_SHARE * self.words))


class HeldoutRuns:
    """The runs of all held-out documents, as a table to look up others in."""

    def __init__(self, hashes: Hashes) -> None:
        """Index the hashes that `heldout_hashes` returned."""
        self._hashes = hashes
        bits = min(max(len(hashes).bit_length() + 4, _FEWEST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._maybe = np.zeros(1 << bits, np.bool_)
        """Whether any hash begins with these bits: rules out nearly all runs."""
        self._maybe[hashes >> self._shift] = True

    def matches(self, text: ChunkedText) -> Matches:
        """The runs that documents share with held-out documents."""
        runs = Runs.of(text)
        maybe = np.flatnonzero(self._maybe[runs.hashes >> self._shift])
        asked = runs.hashes[maybe]
        found = np.searchsorted(self._hashes, asked)
        same = self._hashes[np.minimum(found, len(self._hashes) - 1)] == asked
        places, found = runs.places[maybe[same]], found[same]
        order = np.argsort(places, kind="stable")
        places = places[order]
        documents = np.searchsorted(runs.ends, places, side="right")
        return Matches(documents, places, found[order], np.diff(runs.ends, prepend=0))


def heldout_hashes(texts: Iterable[ChunkedText]) -> Hashes:
    """The distinct hashes of all runs of held-out documents, sorted."""
    none = np.empty(0, np.uint64)
    return np.unique(np.concatenate([none, *(Runs.of(text).hashes for text in texts)]))
