"""A prepared corpus on disk: fixed-length rows of token ids, memory-mapped, with a manifest.

manifest.json       what is here: counts, sources, hash of every file
tokenizer.json
rows-00000.bin      rows of `row_length` ids, little-endian uint16 (uint32 above 65,535 ids)
documents.bin       where each document begins, as uint64 offsets into the stream of tokens
heldout.jsonl.gz    documents that training never sees
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.errors import InputError
from crammed.files import sha256
from crammed.keys import key

ROWS_A_SHARD = 1 << 18
Tokens = NDArray[np.unsignedinteger[Any]]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class RowWriter:
    """Cuts a stream of documents' tokens into rows and writes them as shards.

    Documents follow one another without padding, so a row may hold the end of one and the
    beginning of the next; the last, incomplete row is left out and counted.
    """

    def __init__(self, folder: Path, row_length: int, vocab_size: int) -> None:
        self._folder = folder
        self._row_length = row_length
        self._dtype = token_dtype(vocab_size)
        self._pending: list[Tokens] = []
        self._pending_tokens = 0
        self._shards = 0
        self._starts: list[int] = []
        self.tokens = 0
        self.rows = 0

    def add(self, ids: list[int]) -> None:
        """Append one document's tokens."""
        self._starts.append(self.tokens)
        self._pending.append(np.asarray(ids, self._dtype))
        self._pending_tokens += len(ids)
        self.tokens += len(ids)
        if self._pending_tokens >= ROWS_A_SHARD * self._row_length:
            self._write(ROWS_A_SHARD)

    def _write(self, most_rows: int) -> None:
        stream = np.concatenate(self._pending) if self._pending else np.empty(0, self._dtype)
        rows = min(len(stream) // self._row_length, most_rows)
        if rows:
            stream[: rows * self._row_length].tofile(self._folder / f"rows-{self._shards:05d}.bin")
            self._shards += 1
            self.rows += rows
        self._pending = [stream[rows * self._row_length :].copy()]
        self._pending_tokens = len(self._pending[0])

    def close(self) -> int:
        """Write what is left; return how many tokens of an incomplete last row were left out."""
        while self._pending_tokens >= self._row_length:
            self._write(ROWS_A_SHARD)
        np.asarray(self._starts, "<u8").tofile(self._folder / "documents.bin")
        return self._pending_tokens


class Corpus:
    """A prepared corpus, opened for reading.

    Attributes:
        path: its folder.
        manifest: the content of manifest.json.
        sha256: hash of the manifest, and so of everything it lists.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            InputError: it is no corpus, or a file is missing or of another size than listed.
        """
        self.path = path
        try:
            text = (path / "manifest.json").read_text("utf-8")
            self.manifest: dict[str, Any] = json.loads(text)
            listed: dict[str, Any] = self.manifest["files"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{path} is no prepared corpus: make one with crammed prepare --data TEXT --out DIR"
            ) from error
        for name, entry in listed.items():
            file = path / name
            if not file.is_file() or file.stat().st_size != entry["bytes"]:
                raise InputError(
                    f"corpus {path} is damaged: {name} is missing or cut; prepare it anew"
                )
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()
        dtype = token_dtype(self.vocab_size)
        self._shards = [
            np.memmap(path / name, dtype, "r").reshape(-1, self.row_length)
            for name in sorted(listed)
            if name.startswith("rows-")
        ]

    @property
    def rows(self) -> int:
        return int(self.manifest["rows"])

    @property
    def row_length(self) -> int:
        return int(self.manifest["row_length"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def heldout(self) -> Path:
        """The held-out documents, json lines with a field ``text``."""
        return self.path / "heldout.jsonl.gz"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.path / "tokenizer.json"))

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of these numbers, [len(indices), row_length]."""
        rows = np.empty((len(indices), self.row_length), np.int64)
        shard, within = np.divmod(indices, ROWS_A_SHARD)
        for number in np.unique(shard):
            at = shard == number
            rows[at] = self._shards[number][within[at]]
        return rows

    def damaged(self) -> Iterator[str]:
        """Names of files whose hash is not the listed one; reads everything."""
        for name, entry in self.manifest["files"].items():
            if sha256(self.path / name) != entry["sha256"]:
                yield name


class RowStream:
    """The endless, keyed order of training rows: every epoch shuffled anew.

    Which row comes at place n depends on (seed, n) and the corpus alone.
    """

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._corpus = corpus
        self._seed = seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    def indices(self, start: int, count: int) -> NDArray[np.int64]:
        """Numbers of the rows at places start to start + count - 1."""
        parts = []
        while count:
            epoch, within = divmod(start, self._corpus.rows)
            if epoch != self._epoch:
                draw = np.random.Generator(np.random.PCG64(key(self._seed, "order", epoch)))
                self._order, self._epoch = draw.permutation(self._corpus.rows), epoch
            part = self._order[within : within + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts)

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at those places, [count, row_length]."""
        return self._corpus.read(self.indices(start, count))
