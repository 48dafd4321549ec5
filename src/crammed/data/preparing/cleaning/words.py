"""The words of a text as a tokenizer's normaliser sees them, and their hashes, to compare texts.

Words end at white space of any kind, such as U+00A0, and at punctuation. Case, accents, the width
of letters and what has no width do not count. An ideograph is a word. Where no spaces are written,
as in Thai or between kana, a stretch of more than `LONGEST` letters is cut after letters that a
hash picks, every fourth on average, so a passage is cut alike wherever it stands. Words of ASCII
letters, into which accented ones turn, stay whole unless they are to be cut, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from unicodedata import category, name, normalize
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crammed.columns import integers, numbers_in
from crammed.data.tokenization.chunks import WHITE_SPACE, Remembered

LONGEST = 16
"""Letters that are one word in any script."""

_PICKED = 4
"""One letter in so many ends a word where words are not told apart."""


class _Table(dict[int, str]):
    """What stands for a character, by its number."""

    def __init__(self, put_for: Callable[[str], str]) -> None:
        super().__init__()
        self._put_for = put_for

    def __missing__(self, number: int) -> str:
        value = self[number] = self._put_for(chr(number))
        return value


def _plain(character: str) -> str:
    return "".join(map(_plain_part, normalize("NFKD", character.casefold())))


def _plain_part(character: str) -> str:
    kind = category(character)[0]
    if kind in "MC":  # marks, and what has no width; white space among the controls
        return " " if character.isspace() else ""
    if kind not in "LN":
        return " "
    return f" {character} " if name(character, "").startswith("CJK UNIFIED") else character


def _cut(letter: str) -> str:
    return f"{letter} " if crc32(letter.encode()) % _PICKED == 0 else letter


_LETTERS, _CUTS = _Table(_plain), _Table(_cut)


def words_of(text: str, *, cut_ascii: bool = False) -> list[str]:
    """The words of a text, in lower case; takes time in proportion to its length.

    Args:
        cut_ascii: also cut long stretches of ASCII letters, such as sequences of amino acids.
    """
    word = text.strip(WHITE_SPACE)
    if len(word) <= LONGEST and word.isascii() and word.isalnum():  # as almost every chunk
        return [word.lower()]
    words = text.translate(_LETTERS).split()
    if not cut_ascii and text.isascii():
        return words
    if max(map(len, words), default=0) <= LONGEST:
        return words
    return [piece for word in words for piece in _pieces(word, cut_ascii)]


def _pieces(word: str, cut_ascii: bool) -> list[str]:
    long = len(word) > LONGEST and (cut_ascii or not word.isascii())
    return word.translate(_CUTS).split() if long else [word]


# ---- hashes

Hashes = NDArray[np.uint64]

FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""What the hash of each further word of a passage is multiplied by: odd, so that no bit is lost."""
_FEWEST_BITS, _MANY_BITS = 16, 29
_AT_ONCE = 1 << 16
"""Hashes to note together."""


def hashes_of(words: Iterable[str]) -> Hashes:
    """A hash of 32 bits of each word, the same in every process."""
    return np.fromiter(map(crc32, map(str.encode, words)), np.uint64)


def mixed(hashes: Hashes) -> Hashes:
    """The hashes with their first bits as random as their last."""
    return (hashes ^ (hashes >> np.uint64(32))) * FACTOR


def word_hashes(
    hash_of: Callable[[Iterable[str]], Hashes], *, cut_ascii: bool
) -> Remembered[np.uint64]:
    """Hashes the words of chunked text, those of chunks that differ in capitals alone only once."""

    def find(chunks: pa.StringArray) -> tuple[Hashes, NDArray[np.int64], NDArray[np.int64]]:
        """Nearly every chunk is a word itself."""
        short = numbers_in(pc.binary_length(chunks)) <= LONGEST
        is_word = short & numbers_in(pc.ascii_is_alnum(chunks))
        plain, others = (
            chunks.take(integers(np.flatnonzero(each))).to_pylist() for each in (is_word, ~is_word)
        )
        by_chunk = [words_of(chunk, cut_ascii=cut_ascii) for chunk in others]
        counts = np.array([*[1] * len(plain), *map(len, by_chunk)], np.int64)
        return hash_of(chain(plain, *by_chunk)), counts, np.argsort(~is_word, kind="stable")

    return Remembered(find, np.uint64, lowercase=True)


class Screen:
    """Rules out most hashes that are not among these, by their first bits.

    Takes up to 64 MB of memory, or a byte for each hash if that is more.
    """

    def __init__(self, hashes: Hashes) -> None:
        """Note the hashes, which may be mapped."""
        size = len(hashes).bit_length()
        bits = max(_FEWEST_BITS, min(size + 4, _MANY_BITS), size + 2)
        self._shift = np.uint64(64 - bits)
        self._begins = np.zeros(1 << bits - 3, np.uint8)  # a bit for each beginning
        for at in range(0, len(hashes), _AT_ONCE):
            np.bitwise_or.at(self._begins, *self._places(hashes[at : at + _AT_ONCE]))

    def __call__(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Whether any of the screened hashes begins with the same bits as each of these."""
        places, bits = self._places(hashes)
        found: NDArray[np.bool_] = self._begins[places] & bits != 0
        return found

    def _places(self, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """The byte that has the bit for the beginning of each hash, and that bit."""
        begins = hashes >> self._shift
        bits = np.uint8(1) << (begins.astype(np.uint8) & np.uint8(7))
        begins >>= np.uint64(3)
        return begins.view(np.int64), bits
