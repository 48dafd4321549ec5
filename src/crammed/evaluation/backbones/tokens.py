"""Turns texts into flat arrays of token ids, for the two kinds of tokenizers backbones have."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from crammed.tasks.rows import Texts

_CHUNK = 4096  # sequences held as Python objects at once


@dataclass(frozen=True)
class Tokenized:
    """N sequences end to end, T tokens in all.

    Attributes:
        ids: [T] int32, special tokens included.
        offsets: [N + 1] int64; sequence n is ids[offsets[n] : offsets[n + 1]], and is never empty.
        types: [T] uint8 token types; None for a model without them.
        words: [T] int32; for the first token of a word, the word's index in its sequence; -1 for
            other tokens. None unless the texts were given as words. Every word that was not
            truncated has a first token.
        cut: how many sequences were too long and were truncated.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.uint8] | None
    words: NDArray[np.int32] | None
    cut: int


class _Sequence(NamedTuple):
    ids: Sequence[int]
    types: Sequence[int]
    words: Sequence[int]
    cut: bool


def by_library(
    tokenizer: Tokenizer,
    texts: Sequence[Texts],
    max_length: int,
    *,
    types: bool,
    words: bool,
    filler: int,
    unknown: str | None,
) -> Tokenized:
    """Tokenize with the tokenizers library.

    Args:
        filler: id that replaces a sequence without any tokens.
        unknown: the unknown token, which replaces a word without any tokens.
    """
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.no_padding()
    cutting.enable_truncation(max_length, strategy="longest_first")

    def encoded() -> Iterator[_Sequence]:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            if words:
                yield from _words(cutting, chunk, unknown)
                continue
            for one in cutting.encode_batch_fast([t[0] if len(t) == 1 else t for t in chunk]):
                yield _Sequence(one.ids, one.type_ids, (), bool(one.overflowing))

    return _collect(encoded(), types=types, words=words, filler=filler)


def _words(tokenizer: Tokenizer, rows: Sequence[Texts], unknown: str | None) -> Iterator[_Sequence]:
    # Byte-level tokenizers encode the space before a word; others split at spaces first.
    space = " " if "ByteLevel" in str(tokenizer.pre_tokenizer) else ""
    spaced = [[row[0], *(space + word for word in row[1:])] if row else [] for row in rows]
    encodings: list[Encoding] = tokenizer.encode_batch(spaced, is_pretokenized=True)
    for row, encoding in zip(spaced, encodings, strict=True):
        lost = _without_tokens(row, encoding)
        if lost and unknown is not None:
            whole = [space + unknown if n in lost else word for n, word in enumerate(row)]
            encoding = tokenizer.encode(whole, is_pretokenized=True)
        places = [-1 if place is None else place for place in encoding.word_ids]
        begins = [
            place if place != before else -1
            for place, before in zip(places, (-1, *places), strict=False)
        ]
        yield _Sequence(encoding.ids, encoding.type_ids, begins, bool(encoding.overflowing))


def _without_tokens(row: Sequence[str], encoding: Encoding) -> set[int]:
    """Indices of words without any tokens that were not truncated."""
    present = {place for place in encoding.word_ids if place is not None}
    kept = max(present, default=-1) + 1 if encoding.overflowing else len(row)
    return set(range(kept)) - present


def by_python(
    tokenizer: Any,
    texts: Sequence[Texts],
    max_length: int,
    *,
    types: bool,
    words: bool,
    filler: int,
) -> Tokenized:
    """Tokenize with a transformers tokenizer written in Python.

    Args:
        filler: id that replaces a sequence without any tokens.
    """
    special = [tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True)]
    unknown = [] if tokenizer.unk_token_id is None else [tokenizer.unk_token_id]

    def encoded(row: Texts) -> _Sequence:
        pieces = [plain_ids(tokenizer, text) for text in row]
        if words:
            pieces = [piece or unknown for piece in pieces]
            begins = [
                place if n == 0 else -1 for place, p in enumerate(pieces) for n in range(len(p))
            ]
            pieces = [[n for piece in pieces for n in piece]]
        kept = _shortened([len(piece) for piece in pieces], max_length - special[len(pieces) - 1])
        parts = [piece[:size] for piece, size in zip(pieces, kept, strict=True)]
        ids = tokenizer.build_inputs_with_special_tokens(*parts)
        kinds = tokenizer.create_token_type_ids_from_sequences(*parts) if types else ()
        places = [-1] * len(ids)
        if words and kept[0]:
            first = tokenizer.build_inputs_with_special_tokens([-1] * kept[0]).index(-1)
            places[first : first + kept[0]] = begins[: kept[0]]
        return _Sequence(ids, kinds, places, sum(kept) < sum(map(len, pieces)))

    return _collect(map(encoded, texts), types=types, words=words, filler=filler)


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text without special tokens, from a tokenizer written in Python."""
    return list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)))


def _shortened(lengths: list[int], room: int) -> list[int]:
    """How many tokens of each text to keep; the longer text is truncated first."""
    lengths = list(lengths)
    while sum(lengths) > max(0, room):
        longest = max(range(len(lengths)), key=lambda n: (lengths[n], n))
        lengths[longest] -= 1
    return lengths


def _collect(sequences: Iterable[_Sequence], *, types: bool, words: bool, filler: int) -> Tokenized:
    ids, kinds, begins, offsets = array("i"), array("B"), array("i"), array("q", [0])
    cut = 0
    for one in sequences:
        if not one.ids:
            one = _Sequence([filler], [0], [-1], one.cut)
        ids.extend(one.ids)
        if types:
            kinds.extend(one.types)
        if words:
            begins.extend(one.words)
        offsets.append(len(ids))
        cut += one.cut
    return Tokenized(
        ids=np.array(ids, np.int32),
        offsets=np.array(offsets, np.int64),
        types=np.array(kinds, np.uint8) if types else None,
        words=np.array(begins, np.int32) if words else None,
        cut=cut,
    )
