"""Finds documents that repeat held-out text, unchanged or with a word changed here and there.

Documents are compared by their runs: every 8 consecutive words (`words_of`). Short ones are also
compared as a whole, with each of their words left out in turn, so that one changed word does not
hide them (the deletion neighbourhoods of Mor and Fraenkel 1982).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.data.preparing.cleaning.words import (
    FACTOR,
    Hashes,
    Screen,
    hashes_of,
    mixed,
    word_hashes,
)
from crammed.data.tokenization.chunks import ChunkedText
from crammed.files.writing import save_array, save_pieces

RUN = 8
"""Words in a run, a power of two; the length that Chowdhery et al. (2022) compare by."""
MOST_DOCUMENTS = 10
"""A run in more documents than this is a licence, a header or a template rather than a copy."""
LONG = 13
"""Words of a passage that is no coincidence; the length that Brown et al. (2020) compare by."""
SHORT = 2 * LONG
"""Words of the longest document compared as a whole: one changed word leaves fewer in a run."""
COPIED_SHARE = 0.2
"""A document is a copy if this share of its words lies in long passages of held-out text."""
CONTAINED_SHARE = 0.5
"""A document is a copy if it has this share of its words, or of theirs, from one document."""
APART = 128
"""Words that changes may move the rest of a document by."""
AT_ONCE = 1 << 20
"""Runs of held-out documents that are in memory at a time."""

_WHOLE = -1
"""The place of what is compared as a whole."""
_WORD_HASHES = word_hashes(hashes_of, cut_ascii=True)

_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """The runs of some documents, and short documents as a whole.

    Attributes:
        hashes: [N] hash of each run.
        documents: [N] number of its document.
        places: [N] number of its first word in the document; `_WHOLE` for the whole.
        words: [D] number of words of each document.
    """

    hashes: Hashes
    documents: _Integers
    places: _Integers
    words: _Integers

    @classmethod
    def of(
        cls, text: ChunkedText, among: Callable[[Hashes], NDArray[np.bool_]] | None = None
    ) -> Runs:
        """The runs of chunked text; takes about 20 bytes of memory for each word.

        Args:
            among: says which hashes to keep, if not all.
        """
        words, ends = _WORD_HASHES(text)
        lengths = np.diff(ends, prepend=0)
        begins = ends - lengths
        hashes = _joined(words)
        firsts = np.arange(len(hashes)) if among is None else np.flatnonzero(among(hashes))
        documents = np.searchsorted(ends, firsts, side="right")
        inside = firsts + RUN <= ends[documents]
        firsts, documents = firsts[inside], documents[inside]
        found = [(hashes[firsts], documents, firsts - begins[documents])]
        for length in range(1, SHORT + 1):
            numbers = np.flatnonzero(lengths == length)
            own = words[begins[numbers, None] + np.arange(length)]
            for wholes in _wholes(own):
                kept = np.ones(len(wholes), np.bool_) if among is None else among(wholes)
                found.append((wholes[kept], numbers[kept], np.full(kept.sum(), _WHOLE)))
        every, documents, places = map(np.concatenate, zip(*found, strict=True))
        return cls(every, documents, places, lengths)


def _joined(words: Hashes) -> Hashes:
    """Hash of the `RUN` words that begin at each place, by joining halves."""
    hashes, length = words, 1
    while length < RUN:
        factor = np.uint64(pow(int(FACTOR), length, 1 << 64))
        hashes = hashes[:-length] * factor + hashes[length:]
        length *= 2
    return mixed(hashes)


def _wholes(words: Hashes) -> Iterable[Hashes]:
    """Hashes of documents of the same length, words [D, L], whole and without each word.

    Those of fewer than `RUN` words are compared whole alone: a word is too much of them.
    """
    length = words.shape[1]
    for left_out in (None, *range(length if length >= RUN else 0)):
        hashes = np.full(len(words), length - (left_out is not None), np.uint64)
        for place in range(length):
            if place != left_out:
                hashes = hashes * FACTOR + words[:, place]
        yield ~mixed(hashes)  # unlike any run


class HeldoutRuns:
    """The runs of all held-out documents, as a table to look up others in."""

    def __init__(self, table: Hashes) -> None:
        """Index the table that `write_table` wrote, which may be mapped."""
        self.hashes = table[0]
        self._postings = table[1]

    @cached_property
    def _screen(self) -> Screen:
        return Screen(self.hashes)

    def matches(self, text: ChunkedText) -> Matches:
        """The runs that documents share with held-out documents."""
        runs = Runs.of(text, self._screen)
        found = np.searchsorted(self.hashes, runs.hashes)
        same = self.hashes[np.minimum(found, len(self.hashes) - 1)] == runs.hashes
        return Matches(runs.documents[same], runs.places[same], found[same], runs.words)

    def postings(self, runs: _Integers) -> tuple[_Integers, _Integers, _Integers]:
        """Where runs occur in held-out text: for each, the index in `runs`, document and place."""
        ends = np.searchsorted(self.hashes, self.hashes[runs], side="right")
        counts = ends - runs
        which = np.repeat(np.arange(len(runs)), counts)
        first = np.repeat(ends - np.cumsum(counts), counts)
        found = self._postings[first + np.arange(len(which))]
        places = (found & np.uint64(0xFFFFFFFF)).astype(np.int64) + _WHOLE
        return which, (found >> np.uint64(32)).astype(np.int64), places

    @cached_property
    def words(self) -> _Integers:
        """[H] number of words of each held-out document; 0 for those of fewer than `RUN`."""
        slices = [self._postings[at : at + AT_ONCE] for at in range(0, len(self.hashes), AT_ONCE)]
        last = max((int(some.max()) >> 32 for some in slices), default=-1)
        words = np.zeros(last + 1, np.int64)
        for some in slices:
            ends = (some & np.uint64(0xFFFFFFFF)).astype(np.int64) + _WHOLE + RUN
            runs = ends >= RUN
            np.maximum.at(words, (some[runs] >> np.uint64(32)).astype(np.int64), ends[runs])
        return words


@dataclass(frozen=True)
class Matches:
    """What documents share with held-out text.

    Attributes:
        documents: [M] number of the document.
        places: [M] as in `Runs`.
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

    def without(self, runs: _Integers) -> Matches:
        """The matches with other held-out runs than these."""
        return self._of(~np.isin(self.runs, runs))

    def _of(self, kept: NDArray[np.bool_]) -> Matches:
        return Matches(self.documents[kept], self.places[kept], self.runs[kept], self.words)

    def copies(self, held: HeldoutRuns) -> _Integers:
        """The documents that repeat held-out text, ascending.

        Those that are a short held-out document but for one word; those with `COPIED_SHARE` of
        their words in long passages from any; and those that have much in common with one.
        """
        whole = self.places == _WHOLE
        parts = self._of(~whole)
        order = np.lexsort((parts.places, parts.documents))
        documents, places = parts.documents[order], parts.places[order]
        long = _in_long_passages(documents, places)
        shared = _covered(documents[long], places[long], len(self.words))
        copied = np.flatnonzero((shared > 0) & (shared >= COPIED_SHARE * self.words))
        return np.unique(np.concatenate([self.documents[whole], copied, parts._much_of_one(held)]))

    def _much_of_one(self, held: HeldoutRuns) -> _Integers:
        """The documents that share `CONTAINED_SHARE` of the words of either with a held-out one.

        Only runs that lie about equally far into both count together, within `APART` words: text
        made of a few templates repeats runs anywhere.
        """
        which, numbers, theirs = held.postings(self.runs)
        documents, places = self.documents[which], self.places[which]
        copies = [documents[:0]]
        for shift in (0, APART // 2):
            apart = (theirs - places + shift) // APART
            pairs, pair = np.unique(
                np.stack((documents, numbers, apart)), axis=1, return_inverse=True
            )
            pair = pair.reshape(-1)
            for at, words in ((places, self.words[pairs[0]]), (theirs, held.words[pairs[1]])):
                order = np.lexsort((at, pair))
                enough = np.minimum(np.maximum(CONTAINED_SHARE * words, LONG), words)
                copies.append(pairs[0][_covered(pair[order], at[order], len(words)) >= enough])
        return np.concatenate(copies)


def _in_long_passages(documents: _Integers, places: _Integers) -> NDArray[np.bool_]:
    """[M] whether a run lies in a passage of `LONG` words of which every run is given, in order."""
    begins = (np.diff(documents, prepend=-1) != 0) | (np.diff(places, prepend=0) > 1)
    passage = np.cumsum(begins) - 1
    long: NDArray[np.bool_] = (np.bincount(passage) > LONG - RUN)[passage]
    return long


def _covered(groups: _Integers, places: _Integers, count: int) -> _Integers:
    """[count] number of words in the runs at these places, which are in order in each group."""
    goes_on = np.append(groups[1:] == groups[:-1], False)[: len(groups)]
    covered = np.where(goes_on, np.minimum(np.diff(places, append=0), RUN), RUN)
    return np.bincount(groups, covered, count).astype(np.int64)


# ---- the table


def write_table(file: Path, found: Iterable[Runs]) -> None:
    """Write the table of the runs of held-out documents, [2, N]: hashes, sorted, and postings.

    It takes 16 bytes on the disk for each run, and twice as many while it is written; memory does
    not grow with it. A posting is the number of a document and a place in it.

    Args:
        found: the runs of some documents after the other.
    """
    parts, sizes = [], []
    for number, some in enumerate(_gathered(found)):
        parts.append(file.with_name(f"{file.stem}-{number:05d}.npy"))
        sizes.append(some.shape[1])
        save_array(parts[-1], some[:, np.argsort(some[0], kind="stable")])
    save_pieces(
        file, (2, sum(sizes)), some.dtype, (p for row in (0, 1) for p in _merged(parts, row))
    )
    for part in parts:
        part.unlink()


def _gathered(found: Iterable[Runs]) -> Iterator[Hashes]:
    """Hashes and postings, `AT_ONCE` or little more at a time, [2, n]; there is at least one."""
    waiting, size, documents = [np.empty((2, 0), np.uint64)], 0, 0
    for runs in found:
        numbers = (runs.documents + documents).astype(np.uint64) << np.uint64(32)
        postings = numbers | (runs.places - _WHOLE).astype(np.uint64)
        waiting.append(np.stack((runs.hashes, postings)))
        size += len(postings)
        documents += len(runs.words)
        if size >= AT_ONCE:
            yield np.concatenate(waiting, axis=1)
            waiting, size = [waiting[0]], 0
    yield np.concatenate(waiting, axis=1)


def _merged(parts: Sequence[Path], row: int) -> Iterator[Hashes]:
    """A row of all parts, whose hashes ascend, put together in order: a range of hashes a time."""
    ranges = len(parts)
    bounds = np.array([n * (1 << 64) // ranges for n in range(1, ranges)], np.uint64)
    ends = [np.searchsorted(_mapped(part)[0], bounds) for part in parts]
    begins = [np.insert(each, 0, 0) for each in ends]
    for n in range(ranges):
        pieces = [
            _mapped(part)[:, begin[n] : (*end, None)[n]]
            for part, begin, end in zip(parts, begins, ends, strict=True)
        ]
        every = np.concatenate(pieces, axis=1)
        yield every[row, np.argsort(every[0], kind="stable")]


def _mapped(part: Path) -> Hashes:
    return np.asarray(np.load(part, mmap_mode="r"))
