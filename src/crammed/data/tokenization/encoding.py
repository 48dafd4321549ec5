"""Token ids of many documents: each distinct chunk is tokenized once, and numpy gathers the ids.

This is fast because only a few hundred thousand of millions of chunks are distinct. It needs a
BERT-like tokenizer (`crammed.data.tokenization.chunks`); other tokenizers encode whole texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.tokenization.chunks import WHITE_SPACE, ChunkedText
from crammed.data.tokenization.tokenizer import NOT_ASCII, vocabulary_size

MOST_KNOWN = 1 << 19
"""Chunks whose pieces a `CorpusTokenizer` remembers, in about 100 MB."""

_SEPARATOR = "[CHUNK]"
"""Put after each chunk for tokenizing; no chunk contains it, since none contains "[C"."""
_BATCH = 1000
_LARGEST = np.iinfo(np.int32).max
_ASCII_ONLY = {"type": "Replace", "pattern": {"Regex": NOT_ASCII}, "content": ""}
"""The step that drops characters outside ASCII, as a tokenizer.json holds it."""


class CorpusTokenizer:
    """Turns documents into ids; text that looks like a special token stays text.

    Attributes:
        takes_chunks: whether `encode_chunks` can be used; `encode_texts` always can.
        vocab_size: rows that an embedding needs for all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        values = _without_specials(json.loads(tokenizer.to_str()))
        self.takes_chunks = _is_like_bert(values)
        self.vocab_size = vocabulary_size(tokenizer)
        self._tokenizer = _plain(values)
        if self.takes_chunks:
            self._by_chunk = _plain({**values, "added_tokens": []})
            self._by_chunk.add_special_tokens([_SEPARATOR])
            self._by_chunk.encode_special_tokens = False
            self._separator = self._by_chunk.token_to_id(_SEPARATOR)
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pieces: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._starts: NDArray[np.int32] = np.zeros(1, np.int32)

    def encode_chunks(self, text: ChunkedText) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all documents, joined, and the number of ids up to the end of each document, [D].

        Raises:
            ValueError: the tokenizer cannot encode chunks (see `takes_chunks`).
        """
        if not self.takes_chunks:
            raise ValueError("this tokenizer's pieces depend on their neighbours: use encode_texts")
        if len(self._numbers) > MOST_KNOWN:
            self._forget()
        chunks = [chunk.lstrip(WHITE_SPACE) for chunk in text.unique]
        self._learn([chunk for chunk in dict.fromkeys(chunks) if chunk not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, chunks), np.int32, len(chunks))
        chunk_starts = self._starts[:-1][numbers]
        chunk_lengths = np.diff(self._starts)[numbers]

        lengths = chunk_lengths[text.codes]
        ends = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=ends[1:])
        # The piece at place p, in chunk c, is at p - ends[c] + chunk_starts[c].
        places = np.repeat(chunk_starts[text.codes] - ends[:-1], lengths)
        places += np.arange(ends[-1], dtype=np.int32)
        return self._pieces[places], ends[text.ends].astype(np.int64)

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
        """The same as `encode_chunks`, from whole texts and with any tokenizer."""
        ids = [np.empty(0, np.uint32)]
        for text in texts:  # one at a time: the library needs 100 bytes per token
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids.append(np.asarray(encoding.ids, np.uint32))
        return np.concatenate(ids), np.cumsum([len(part) for part in ids[1:]], dtype=np.int64)


def _plain(values: dict[str, Any]) -> Tokenizer:
    """A tokenizer that reads special tokens as text, and neither truncates nor pads."""
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.encode_special_tokens = True  # as ordinary text, that is
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_specials(values: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json whose model finds no special tokens in text.

    Unigram and WordPiece models find every piece of their vocabulary, special or not, so special
    tokens are renamed to what no text contains and keep their ids. (BPE reaches pieces only by
    merging.)
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


def _is_like_bert(values: dict[str, Any]) -> bool:
    """Whether a tokenizer.json never joins what `cut_into_chunks` cuts apart."""
    normalizer = values["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    return bool(
        steps
        and values["model"]["type"] in ("WordPiece", "WordLevel")
        and (values["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and steps[0].get("type") == "BertNormalizer"
        and steps[0]["clean_text"]
        and steps[0]["handle_chinese_chars"]
        and all(step == _ASCII_ONLY for step in steps[1:])
        and all(token["special"] for token in values["added_tokens"])
    )
