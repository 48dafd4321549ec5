"""Token ids of many documents: each distinct chunk is tokenized once, and numpy gathers the ids.

This is fast because only a few hundred thousand of millions of chunks are distinct. It needs a
BERT-like tokenizer (`crammed.data.tokenization.chunks`); other tokenizers encode whole texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.columns import numbers_in
from crammed.data.tokenization.chunks import ChunkedText, Remembered
from crammed.data.tokenization.tokenizer import NOT_ASCII, vocabulary_size

_SEPARATOR = "[CHUNK]"
"""Put after each chunk for tokenizing; no chunk contains it, since none contains "[C"."""
_CONTINUES = "##"
"""What WordPiece writes before a piece that is not the first of its word."""
_BATCH = 1000
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
            self._separator = int(self._by_chunk.token_to_id(_SEPARATOR) or 0)
            plain: dict[str, Any] = {**values, "normalizer": None, "added_tokens": []}
            self._by_word = _plain({**plain, "pre_tokenizer": {"type": "WhitespaceSplit"}})
            self._begins_word = np.ones(self.vocab_size, np.bool_)
            for piece, number in values["model"]["vocab"].items():
                self._begins_word[number] = not piece.startswith(_CONTINUES)
            lowercase = _normalizer_steps(values)[0]["lowercase"]
            self._remembered = Remembered(self._pieces_of, np.uint32, lowercase=lowercase)

    def encode_chunks(self, text: ChunkedText) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all documents, joined, and the number of ids up to the end of each document, [D].

        Only for tokenizers whose pieces do not depend on their neighbours (see `takes_chunks`).
        """
        return self._remembered(text)

    def _pieces_of(
        self, words: pa.StringArray
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
        """The pieces of words, for `Remembered`.

        Plain ones, as most are, have letters and digits alone, and need not be normalised.
        """
        is_plain = pc.ascii_is_alnum(words)
        plain = _ids(self._by_word, " ", words.filter(is_plain))
        starts = np.flatnonzero(self._begins_word[plain])
        others = _ids(self._by_chunk, _SEPARATOR, words.filter(pc.invert(is_plain)))
        separators = np.flatnonzero(others == self._separator)
        ends = np.append(starts[1:], len(plain))[: len(starts)]
        ends = np.append(ends, len(plain) + separators - np.arange(len(separators)))
        order = np.argsort(~numbers_in(is_plain), kind="stable")
        pieces = np.append(plain, np.delete(others, separators))
        return pieces, np.diff(ends, prepend=0), order

    def encode_texts(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The same as `encode_chunks`, from whole texts and with any tokenizer."""
        ids = [np.empty(0, np.uint32)]
        for text in texts:  # one at a time: the library needs 100 bytes per token
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids.append(np.asarray(encoding.ids, np.uint32))
        return np.concatenate(ids), np.cumsum([len(part) for part in ids[1:]], dtype=np.int64)


def text_only(tokenizer: Tokenizer) -> Tokenizer:
    """The same, but text that looks like a special token stays text, as for `CorpusTokenizer`."""
    return _plain(_without_specials(json.loads(tokenizer.to_str())))


def _plain(values: dict[str, Any]) -> Tokenizer:
    """A tokenizer that reads special tokens as text, and neither truncates nor pads."""
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _ids(tokenizer: Tokenizer, after: str, words: pa.StringArray) -> NDArray[np.uint32]:
    """Ids of words, joined, with `after` after each of them."""
    found = [np.empty(0, np.uint32)]
    for at in range(0, len(words), _BATCH):
        text = after.join((*words[at : at + _BATCH].to_pylist(), ""))
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        found.append(np.asarray(encoding.ids, np.uint32))
    return np.concatenate(found)


def _normalizer_steps(values: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = values["normalizer"] or {}
    return [*normalizer.get("normalizers", [normalizer])]


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
    steps = _normalizer_steps(values)
    return bool(
        steps
        and values["model"]["type"] in ("WordPiece", "WordLevel")
        and (values["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and steps[0].get("type") == "BertNormalizer"
        and steps[0]["clean_text"]
        and steps[0]["handle_chinese_chars"]
        and all(step == _ASCII_ONLY for step in steps[1:])
        and values["model"].get("continuing_subword_prefix", _CONTINUES) == _CONTINUES
        and all(token["special"] for token in values["added_tokens"])
    )
