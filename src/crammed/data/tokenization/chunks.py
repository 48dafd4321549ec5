"""Cuts text into chunks, such as " the" and ",", that can be tokenized one by one.

BERT's normaliser works character by character, and its pre-tokenizer cuts at white space, around
punctuation and around Chinese characters. If text is cut at those places beforehand, its word
pieces are those of its chunks in order. Cuts are made only at ASCII or Chinese characters: these
never combine with a neighbour in any normal form, and can be found by looking at bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crammed.columns import numbers_in, strings_of
from crammed.errors import InputError

WHITE_SPACE = " \t\n\r"
"""The ASCII that BERT's normaliser turns into spaces; it removes other control characters."""

MOST_KNOWN = 1 << 18
"""Distinct words to remember something about, which takes about 10 MB."""

Value = TypeVar("Value", bound=np.generic)

_LARGEST = np.iinfo(np.int32).max
_OTHER, _WHITE, _PUNCTUATION = 1, 2, 4


def _byte_table() -> bytes:
    """The kind of each byte and, three bits higher, the kinds that it is cut off from."""
    kind = np.full(256, _OTHER, np.uint8)
    cut_after = np.full(256, _PUNCTUATION, np.uint8)
    for byte in WHITE_SPACE.encode():
        kind[byte], cut_after[byte] = _WHITE, _OTHER | _PUNCTUATION
    for byte in range(0x21, 0x7F):
        if not chr(byte).isalnum():
            kind[byte], cut_after[byte] = _PUNCTUATION, _OTHER | _WHITE | _PUNCTUATION
    cut_after[0xE5:0xEA] = _OTHER | _WHITE | _PUNCTUATION  # U+5000 to U+9FFF begin with these
    return (kind | cut_after << 3).tobytes()


_TABLE = _byte_table()


@dataclass(frozen=True)
class ChunkedText:
    """Documents as chunks.

    Attributes:
        distinct: the distinct chunks, in the order in which they first occur.
        counts: [len(distinct)] how often each of them occurs.
        codes: [C] index in `distinct` of every chunk of all documents, in order.
        ends: [D] number of codes up to the end of each document.
    """

    distinct: pa.StringArray
    counts: NDArray[np.int64]
    codes: NDArray[np.uint32]
    ends: NDArray[np.int64]


class Remembered(Generic[Value]):
    """Values of words, such as token ids, found once for each distinct word in chunked text.

    A word is a chunk without the white space before it.

    Args:
        find: the values of words, joined in an order of its own; how many each word has, in that
            order; and the order, as numbers of the words.
        dtype: of the values.
        lowercase: whether words that differ in ASCII capitals alone are the same.
    """

    def __init__(
        self,
        find: Callable[
            [pa.StringArray], tuple[NDArray[Value], NDArray[np.int64], NDArray[np.int64]]
        ],
        dtype: type[Value],
        *,
        lowercase: bool,
    ) -> None:
        self._find = find
        self._dtype = dtype
        self._lowercase = lowercase
        self._forget()

    def _forget(self) -> None:
        self._words = pa.nulls(0, pa.string())
        self._values = np.empty(0, self._dtype)
        self._starts, self._counts = np.empty((2, 0), np.int32)

    def __len__(self) -> int:
        return len(self._words)

    def __call__(self, text: ChunkedText) -> tuple[NDArray[Value], NDArray[np.int64]]:
        """The values of all documents, joined, and their number up to the end of each, [D]."""
        if len(self) > MOST_KNOWN:
            self._forget()
        words = pc.utf8_ltrim(text.distinct, WHITE_SPACE)
        numbers = self._numbers(pc.ascii_lower(words) if self._lowercase else words)
        here = self._counts[numbers][text.codes]
        ends = np.zeros(len(here) + 1, np.int32)
        np.cumsum(here, out=ends[1:])
        # The value at place p, of chunk c, is at p - ends[c] + the start of its word.
        places = np.repeat(self._starts[numbers][text.codes] - ends[:-1], here)
        del here
        places += np.arange(ends[-1], dtype=np.int32)
        return self._values[places], ends[text.ends].astype(np.int64)

    def _numbers(self, words: pa.StringArray) -> NDArray[np.int32]:
        """The number of each word; what is new is found and remembered."""
        before = len(self)
        coded = pa.concat_arrays([self._words, words]).dictionary_encode()
        self._words = coded.dictionary
        if len(new := self._words[before:]):
            values, found, order = self._find(new)
            starts, counts = np.empty((2, len(new)), np.int32)
            counts[order] = found
            starts[order] = len(self._values) + np.cumsum(found) - found
            self._starts = np.append(self._starts, starts)
            self._counts = np.append(self._counts, counts)
            self._values = np.append(self._values, values)
        return numbers_in(coded.indices)[before:]


def cut_into_chunks(texts: Sequence[str] | pa.LargeStringArray) -> ChunkedText:
    """Cut texts before runs of white space, around ASCII punctuation, before Chinese characters.

    Raises:
        InputError: the texts have 2 GiB or more in all.
    """
    documents = texts if isinstance(texts, pa.LargeStringArray) else strings_of(texts)
    _, offsets, characters = documents.buffers()
    borders = np.frombuffer(offsets or bytes(8), np.int64)[documents.offset :][: len(texts) + 1]
    if borders[0]:
        characters, borders = characters.slice(borders[0]), borders - borders[0]
    if borders[-1] >= _LARGEST:
        raise InputError(
            f"a document of {borders[-1]:,} bytes is too large: cut it into documents below 2 GiB"
        )
    data = np.frombuffer(characters or b"", np.uint8, borders[-1])
    cut = np.zeros(len(data) + 1, np.bool_)
    if len(data):
        kinds = np.frombuffer(data.tobytes().translate(_TABLE), np.uint8)
        np.not_equal(kinds[:-1] << 3 & kinds[1:], 0, out=cut[1:-1])
    cut[borders] = True
    starts = np.flatnonzero(cut).astype(np.int32)  # starts of all chunks, then the end of the last
    chunks = pa.Array.from_buffers(
        pa.string(), len(starts) - 1, [None, pa.py_buffer(starts), characters]
    ).dictionary_encode()
    codes = numbers_in(chunks.indices)
    return ChunkedText(
        distinct=chunks.dictionary,
        counts=np.bincount(codes, minlength=len(chunks.dictionary)),
        codes=codes.view(np.uint32),
        ends=np.searchsorted(starts, borders[1:].astype(np.int32)).astype(np.int64),
    )
