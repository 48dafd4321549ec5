"""Hashes of words and of passages, and a quick look whether a hash may be among others."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

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


class Screen:
    """Rules out nearly all hashes that are not among these, by their first bits."""

    def __init__(self, hashes: Hashes) -> None:
        bits = min(max(len(hashes).bit_length() + 4, _FEWEST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._begins = np.zeros(1 << bits, np.bool_)
        self._begins[hashes >> self._shift] = True

    def __call__(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Whether any of the screened hashes begins with the same bits as each of these."""
        found: NDArray[np.bool_] = self._begins[hashes >> self._shift]
        return found
