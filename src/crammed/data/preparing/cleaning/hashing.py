"""Hashes of words and of passages, and a quick look whether a hash may be among others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crammed.columns import integers, numbers_in
from crammed.data.preparing.cleaning.words import LONGEST, words_of
from crammed.data.tokenization.chunks import MOST_KNOWN, WHITE_SPACE, ChunkedText, Known, values_of

Hashes = NDArray[np.uint64]

FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""What the hash of each further word of a passage is multiplied by: odd, so that no bit is lost."""
_FEWEST_BITS, _MOST_BITS = 16, 26


def hashes_of(words: Iterable[str]) -> Hashes:
    """A hash of 32 bits of each word, the same in every process."""
    return np.fromiter(map(crc32, map(str.encode, words)), np.uint64)


def mixed(hashes: Hashes) -> Hashes:
    """The hashes with their first bits as random as their last."""
    return (hashes ^ (hashes >> np.uint64(32))) * FACTOR


class WordHashes:
    """Hashes the words of chunked text, those of chunks that differ in capitals alone only once."""

    def __init__(self, hash_of: Callable[[Iterable[str]], Hashes], *, cut_ascii: bool) -> None:
        """Take a function that hashes words, and how to cut them (`words_of`)."""
        self._hash_of = hash_of
        self._cut_ascii = cut_ascii
        self._forget()

    def _forget(self) -> None:
        self._known = Known()
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._starts: NDArray[np.int32] = np.empty(0, np.int32)
        self._counts: NDArray[np.int32] = np.empty(0, np.int32)

    def __call__(self, text: ChunkedText) -> tuple[Hashes, NDArray[np.int64]]:
        """The words' hashes, joined, and the number of words up to the end of each document."""
        if len(self._known) > MOST_KNOWN:
            self._forget()
        words = pc.ascii_lower(pc.utf8_ltrim(text.distinct, WHITE_SPACE))
        numbers, new = self._known.numbers(words)
        self._learn(new)
        starts, counts = self._starts[numbers], self._counts[numbers]
        hashes, ends = values_of(text.codes, self._hashes, starts, counts)
        return hashes, ends[text.ends].astype(np.int64)

    def _learn(self, new: pa.StringArray) -> None:
        """Hash the words of chunks; nearly every chunk is a word itself."""
        short = numbers_in(pc.binary_length(new)) <= LONGEST
        is_word = short & numbers_in(pc.ascii_is_alnum(new))
        plain, others = (
            new.take(integers(np.flatnonzero(each))).to_pylist() for each in (is_word, ~is_word)
        )
        by_chunk = [words_of(chunk, cut_ascii=self._cut_ascii) for chunk in others]
        order = np.argsort(~is_word, kind="stable")
        counts = np.ones(len(new), np.int32)
        counts[order[len(plain) :]] = list(map(len, by_chunk))
        starts = np.empty_like(counts)
        starts[order] = len(self._hashes) + np.cumsum(counts[order]) - counts[order]
        hashes = self._hash_of(chain(plain, *by_chunk))
        self._hashes = np.append(self._hashes, hashes)
        self._starts = np.append(self._starts, starts)
        self._counts = np.append(self._counts, counts)


class Screen:
    """Rules out nearly all hashes that are not among these, by their first bits."""

    def __init__(self, hashes: Hashes) -> None:
        bits = min(max(len(hashes).bit_length() + 4, _FEWEST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._begins = np.zeros(1 << bits, np.bool_)
        self._begins[hashes >> self._shift] = True

    def __call__(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Whether any of the screened hashes begins with the same bits as each of these."""
        found: NDArray[np.bool_] = self._begins[(hashes >> self._shift).view(np.int64)]
        return found
