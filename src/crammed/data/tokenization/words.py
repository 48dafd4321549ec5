"""Tokenizing words first: each distinct chunk of text once, then a gather with numpy.

BERT's normaliser works character by character and its pre-tokeniser cuts at white space, around
punctuation and around Chinese characters, so text may be cut at those places beforehand: the pieces
of a whole are the pieces of its chunks, one after the other. A few hundred thousand distinct chunks
make up millions, which is where the speed comes from. The cuts are ASCII or Chinese on purpose:
these characters never combine with a neighbour under any normal form, and bytes show them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.tokenization.tokenizer import vocabulary_size
from crammed.errors import InputError

MOST_KNOWN = 1 << 19
"""Chunks whose pieces an `WordEncoder` remembers: about 100 MB."""

WHITE_SPACE = " \t\n\r"
"""What BERT's normaliser makes a space of in ASCII; other control characters it removes."""

_SEPARATOR = "[CHUNK]"
"""Stands behind chunks when they are tokenized; no chunk holds it, for none holds "[C"."""
_BATCH = 1000
_LARGEST = np.iinfo(np.int32).max

_OTHER, _WHITE, _PUNCTUATION = 1, 2, 4


def _byte_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """What each byte is, and after which kinds of byte text is cut before it."""
    kind = np.full(256, _OTHER, np.uint8)
    cut_after = np.full(256, _PUNCTUATION, np.uint8)
    for byte in WHITE_SPACE.encode():
        kind[byte], cut_after[byte] = _WHITE, _OTHER | _PUNCTUATION
    for byte in range(0x21, 0x7F):
        if not chr(byte).isalnum():
            kind[byte], cut_after[byte] = _PUNCTUATION, _OTHER | _WHITE | _PUNCTUATION
    cut_after[0xE5:0xEA] = _OTHER | _WHITE | _PUNCTUATION  # U+5000 to U+9FFF begin with these
    return kind, cut_after


_KIND, _CUT_AFTER = _byte_tables()


@dataclass(frozen=True)
class SplitText:
    """Documents as chunks, such as " the" and ",".

    Attributes:
        unique: the distinct chunks, in the order in which they first occur.
        counts: [len(unique)] how often each occurs.
        codes: [C] number in `unique` of each chunk in turn, all documents after one another.
        ends: [D] how many codes there are up to the end of each document.
    """

    unique: list[str]
    counts: NDArray[np.int64]
    codes: NDArray[np.uint32]
    ends: NDArray[np.int64]


def split(texts: Sequence[str]) -> SplitText:
    """Cut texts before runs of white space, around ASCII punctuation, before Chinese characters.

    Raises:
        InputError: the texts are 2 GiB or more together.
    """
    documents = pa.array(texts, pa.large_string())
    _, offsets, characters = documents.buffers()
    borders = np.frombuffer(offsets, np.int64, len(texts) + 1)
    if borders[-1] >= _LARGEST:
        raise InputError(
            f"a document of {borders[-1]:,} bytes is too large: cut it into documents below 2 GiB"
        )
    data = np.frombuffer(characters or b"", np.uint8, borders[-1])
    cut = np.zeros(len(data) + 1, np.bool_)
    if len(data):
        cut[1:-1] = (_KIND[data[:-1]] & _CUT_AFTER[data[1:]]) != 0
    cut[borders] = True
    starts = np.flatnonzero(cut).astype(np.int32)  # of every chunk, and where the last one ends
    chunks = pa.Array.from_buffers(
        pa.string(), len(starts) - 1, [None, pa.py_buffer(starts), characters]
    ).dictionary_encode()
    codes = np.asarray(chunks.indices)
    unique = chunks.dictionary.to_pylist()
    return SplitText(
        unique=unique,
        counts=np.bincount(codes, minlength=len(unique)),
        codes=codes.view(np.uint32),
        ends=np.searchsorted(starts, borders[1:].astype(np.int32)).astype(np.int64),
    )


class WordEncoder:
    """Turns text into ids; text that looks like a special token stays text.

    Attributes:
        words_first: whether `encode` gives this tokenizer's ids; `encode_texts` always does.
        vocab_size: rows of an embedding that every id fits into.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        values = _without_specials(json.loads(tokenizer.to_str()))
        self.words_first = _cuts_at_words(values)
        self.vocab_size = vocabulary_size(tokenizer)
        self._tokenizer = _plain(values)
        if self.words_first:
            self._by_chunk = _plain({**values, "added_tokens": []})
            self._by_chunk.add_special_tokens([_SEPARATOR])
            self._by_chunk.encode_special_tokens = False
            self._separator = self._by_chunk.token_to_id(_SEPARATOR)
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pieces: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._starts: NDArray[np.int32] = np.zeros(1, np.int32)

    def encode(self, words: SplitText) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all documents after one another, and how many up to the end of each [D].

        Raises:
            ValueError: the tokenizer is not of this kind (see `words_first`).
        """
        if not self.words_first:
            raise ValueError("this tokenizer's pieces depend on neighbours: use encode_texts")
        if len(self._numbers) > MOST_KNOWN:
            self._forget()
        chunks = [chunk.lstrip(WHITE_SPACE) for chunk in words.unique]
        self._learn([chunk for chunk in dict.fromkeys(chunks) if chunk not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, chunks), np.int32, len(chunks))
        chunk_starts = self._starts[:-1][numbers]
        chunk_lengths = np.diff(self._starts)[numbers]

        lengths = chunk_lengths[words.codes]
        ends = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=ends[1:])
        # The piece of place p of chunk c is at p - ends[c] + chunk_starts[c].
        places = np.repeat(chunk_starts[words.codes] - ends[:-1], lengths)
        places += np.arange(ends[-1], dtype=np.int32)
        return self._pieces[places], ends[words.ends].astype(np.int64)

    def _learn(self, chunks: list[str]) -> None:
        """Tokenize chunks in batches, with a separator after each."""
        new = [
            self._by_chunk.encode_batch_fast(
                [_SEPARATOR.join((*chunks[at : at + _BATCH], ""))], add_special_tokens=False
            )[0].ids
            for at in range(0, len(chunks), _BATCH)
        ]
        if not new:
            return
        pieces = np.concatenate([np.asarray(ids, np.uint32) for ids in new])
        separators = np.flatnonzero(pieces == self._separator)
        ends = separators - np.arange(len(separators))
        self._numbers.update(zip(chunks, range(len(self._numbers), _LARGEST), strict=False))
        self._starts = np.concatenate([self._starts, (self._starts[-1] + ends).astype(np.int32)])
        self._pieces = np.concatenate([self._pieces, np.delete(pieces, separators)])

    def encode_texts(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """What `encode` gives, by the library's own way, for any tokenizer."""
        ids = [np.empty(0, np.uint32)]
        for text in texts:  # one at a time: the library needs 100 bytes a token
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids.append(np.asarray(encoding.ids, np.uint32))
        return np.concatenate(ids), np.cumsum([len(part) for part in ids[1:]], dtype=np.int64)


def _plain(values: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.encode_special_tokens = True  # that is, as the text they are
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_specials(values: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json whose model finds no special tokens in text.

    Unigram and WordPiece models find every piece of their vocabulary, special or not; under names
    that no text has, those keep their ids. (BPE reaches pieces through merges only.)
    """
    model = dict(values["model"])
    if model["type"] == "BPE":
        return values
    tokens = values["added_tokens"]
    hidden = {t["content"]: f"\0 {t['content']}" for t in tokens if t["special"]}
    if isinstance(model["vocab"], dict):
        pieces = set(model["vocab"])
        model["vocab"] = {hidden.get(piece, piece): n for piece, n in model["vocab"].items()}
    else:
        pieces = {piece for piece, _ in model["vocab"]}
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    left = [t for t in tokens if not (t["special"] and t["content"] in pieces)]
    return {**values, "model": model, "added_tokens": left}


def _cuts_at_words(values: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is of BERT's kind, so that `split` cuts nothing it would join."""
    normalizer = values["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    return (
        values["model"]["type"] == "WordPiece"
        and (values["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and steps[0].get("type") == "BertNormalizer"
        and steps[0]["clean_text"]
        and steps[0]["handle_chinese_chars"]
        and all(step == ASCII_ONLY for step in steps[1:])
        and all(token["special"] for token in values["added_tokens"])
    )


ASCII_ONLY = {"type": "Replace", "pattern": {"Regex": r"[^\x00-\x7F]"}, "content": ""}
"""The step that drops what is outside ASCII, as tokenizer.json has it."""
