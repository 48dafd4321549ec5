"""A prepared corpus on disk: fixed-length rows of token ids, memory-mapped, with a manifest.

manifest.json       counts, sources, and the hash of every file
tokenizer.json
rows-NNNNN.bin      rows of `row_length` ids, little-endian uint16 (uint32 above 65,536 ids); a file
                    may have any number of rows, and numbering continues from file to file
order-NAME.bin      stored orders: the row at each place, uint32 (uint64 above 2**32 rows)
heldout.jsonl.gz    documents that training never sees, in a field ``text``, with the name of
                    their source in a field ``source`` if there are several
digests.bin         the documents to train on, so that a longer corpus does not repeat them
dropped.jsonl.gz    samples of what each step dropped: step, source, text

Corpora of older versions also have documents.bin, which is not needed: [SEP] ends every document.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.config import OrderConfig
from crammed.config.migration import migrate
from crammed.data.tokenization.tokenizer import read_tokenizer
from crammed.errors import InputError
from crammed.files.addresses import began_as_address
from crammed.files.folders import inside
from crammed.files.hashes import sha256
from crammed.files.regular import read_text
from crammed.files.writing import write_array
from crammed.keys import key

Tokens = NDArray[np.unsignedinteger[Any]]
COUNTED_TOKENS = 1 << 23
"""About how many tokens `Corpus.token_counts` reads from a large corpus."""
_ROWS_AT_ONCE = 1 << 16
MOST_MAPPED = 20_000
"""Files of rows to map at a time; Linux allows a process 65,530 mappings."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def order_dtype(rows: int) -> np.dtype[Any]:
    """The smallest little-endian unsigned type that holds every row number."""
    return np.dtype("<u4" if rows <= 1 << 32 else "<u8")


def write_rows(path: Path, tokens: Tokens, row_length: int, dtype: np.dtype[Any]) -> Tokens:
    """Write the whole rows of `tokens` [T], if any, and return the last T % row_length tokens.

    Documents follow each other without padding, so a row may hold the end of one document and the
    beginning of the next.
    """
    whole = len(tokens) // row_length * row_length
    if whole:
        write_array(path, tokens[:whole].astype(dtype, copy=False))
    return tokens[whole:].copy()


def rows_file_number(name: str) -> int:
    return int(name.removeprefix("rows-").removesuffix(".bin"))


def is_damaged(path: Path, how: str) -> InputError:
    """The error that says how a corpus is damaged; the same text gives the same corpus again."""
    return InputError(f"corpus {path} is damaged: {how}; delete {path} and prepare it again")


class Corpus:
    """A prepared corpus, opened for reading.

    Attributes:
        path: its folder.
        manifest: the content of manifest.json.
        sha256: hash of the manifest, and so of everything that it lists.
        row_files: names of the files of rows, in order.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`.

        Raises:
            InputError: it is not a corpus, or a file is missing or does not have its listed size.
        """
        self.path = path
        try:
            text = read_text(path / "manifest.json")
            self.manifest: dict[str, Any] = json.loads(text)
            listed: dict[str, Any] = self.manifest["files"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            how = "make one with crammed prepare --data TEXT --out DIR"
            if began_as_address(path):
                how = "copy what is at an address with crammed data copy ADDRESS DIR"
            raise InputError(f"{path} is not a corpus: {how}") from error
        try:
            self._check_sizes()
            self.row_files = sorted(
                (name for name in listed if name.startswith("rows-")), key=rows_file_number
            )
            row_bytes = self.row_length * token_dtype(self.vocab_size).itemsize
            sizes = [listed[name]["bytes"] // row_bytes for name in self.row_files]
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise is_damaged(path, "its manifest.json makes no sense") from error
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()
        self._first_rows = np.cumsum([0, *sizes])
        self._mapped = lru_cache(MOST_MAPPED)(self._map)

    def _check_sizes(self) -> None:
        for name, entry in self.manifest["files"].items():
            file = inside(self.path, name, f"manifest.json in {self.path}")
            if not file.is_file() or file.stat().st_size != entry["bytes"]:
                raise is_damaged(self.path, f"{name} is missing or cut off")

    @property
    def rows(self) -> int:
        return int(self._first_rows[-1])

    @property
    def row_length(self) -> int:
        return int(self.manifest["row_length"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def heldout(self) -> Path:
        """The file of held-out documents: JSON lines with a field ``text``."""
        return self.path / "heldout.jsonl.gz"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.path / "tokenizer.json", self.vocab_size)

    @property
    def orders(self) -> tuple[str, ...]:
        """Names of the stored orders."""
        names = sorted(name for name in self.manifest["files"] if name.startswith("order-"))
        return tuple(name.removeprefix("order-").removesuffix(".bin") for name in names)

    def settings(self) -> dict[str, Any]:
        """The part of a run's configuration that this corpus determines."""
        data = {**self.manifest["data"], "sources": []}
        tokenizer = self.manifest["tokenizer"]
        return migrate({"corpus": self.sha256, "data": data, "tokenizer": tokenizer})

    def order(self, name: str) -> Tokens:
        """A stored order: the row at each place, [rows].

        Raises:
            InputError: the corpus does not store it.
        """
        if name not in self.orders:
            stored = ", ".join(("random", *self.orders))
            raise InputError(
                f"corpus {self.path} has no order {name} (it has: {stored}): set order.by to one "
                f"of them, or prepare the corpus again with 'data.orders=[{name}]'"
            )
        return np.memmap(self.path / f"order-{name}.bin", order_dtype(self.rows), "r")

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows with these numbers, [len(indices), row_length].

        Raises:
            InputError: a file was cut off since the corpus was opened. If that happens during the
                read itself, the process dies of SIGBUS, which cannot be caught.
        """
        rows = np.empty((len(indices), self.row_length), np.int64)
        files = np.searchsorted(self._first_rows, indices, side="right") - 1
        within = indices - self._first_rows[files]
        by_file = np.argsort(files, kind="stable")
        numbers, begins = np.unique(files[by_file], return_index=True)
        for number, at in zip(numbers.tolist(), np.split(by_file, begins[1:]), strict=False):
            mapped = self._mapped(number)
            self._check_length(number)
            rows[at] = mapped[within[at]]
        return rows

    def token_counts(self, *, sampled: bool = True) -> NDArray[np.int64]:
        """Occurrences of each token, [V]: in all rows, or in every n-th row of a large corpus.

        Args:
            sampled: False reads all rows of a large corpus, too.
        """
        apart = max(1, self.rows * self.row_length // COUNTED_TOKENS) if sampled else 1
        counts = np.zeros(self.vocab_size, np.int64)
        for start in range(0, self.rows, apart * _ROWS_AT_ONCE):
            end = min(start + apart * _ROWS_AT_ONCE, self.rows)
            tokens = self.read(np.arange(start, end, apart)).ravel()
            counts += np.bincount(tokens, minlength=len(counts))
        return counts

    def _check_length(self, number: int) -> None:
        """Raise an `InputError` if a file has become shorter: reading past its end is fatal."""
        name = self.row_files[number]
        try:
            size = os.stat(f"{self.path}/{name}").st_size
        except FileNotFoundError:  # a removed file stays mapped
            return
        if size < (listed := self.manifest["files"][name]["bytes"]):
            raise InputError(
                f"corpus {self.path} was changed while it was read: {name} has {size:,} of "
                f"{listed:,} bytes; restore it from a copy, then repeat the same command"
            )

    def _map(self, number: int) -> Tokens:
        """The rows of a file, [its rows, row_length]."""
        self._check_length(number)
        # Arrow's mapping outlives the file descriptor, so thousands of files need not stay open.
        with pa.memory_map(str(self.path / self.row_files[number])) as file:
            content = file.read_buffer()
        return np.frombuffer(content, token_dtype(self.vocab_size)).reshape(-1, self.row_length)

    def damaged(self) -> Iterator[str]:
        """Names of files that cannot be read or differ from the manifest; reads every file."""
        for name, entry in self.manifest["files"].items():
            try:
                intact = sha256(self.path / name) == entry["sha256"]
            except OSError:
                intact = False
            if not intact:
                yield name


class RowStream:
    """The endless, keyed order of training rows.

    The row at place n depends only on (seed, n), the corpus and the `OrderConfig`. Takes 4 bytes of
    memory for each row of the corpus (8 above 2**32 rows).
    """

    def __init__(self, corpus: Corpus, seed: int, order: OrderConfig | None = None) -> None:
        """Begin with the first epoch.

        Args:
            order: None for a random order, shuffled again for every epoch.

        Raises:
            InputError: the corpus does not store that order.
        """
        self._corpus = corpus
        self._seed = seed
        self._config = order or OrderConfig()
        self._epoch = 0
        self._order = self._order_of(0)

    def indices(self, start: int, count: int) -> NDArray[np.int64]:
        """Numbers of the rows at places start to start + count - 1."""
        parts = [self._order[:0]]
        while count:
            epoch, within = divmod(start, self._corpus.rows)
            epoch = epoch if self._config.reshuffle else 0
            if epoch != self._epoch:
                self._order, self._epoch = self._order_of(epoch), epoch
            part = self._order[within : within + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts).astype(np.int64)

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at those places, [count, row_length]."""
        return self._corpus.read(self.indices(start, count))

    def _order_of(self, epoch: int) -> Tokens:
        """The row at each place of an epoch, [rows]."""
        order = np.arange(self._corpus.rows, dtype=order_dtype(self._corpus.rows))
        shuffled_from, pool = 0, len(order)
        draw = np.random.Generator(np.random.PCG64(key(self._seed, "order", epoch)))
        if epoch == 0 and self._config.by != "random":
            pool = max(1, round(self._config.pool * len(order)))
            order[:] = self._with_pool_first(self._corpus.order(self._config.by), pool)
            shuffled_from = round(self._config.share * pool)
            draw.shuffle(order[pool:])
        draw.shuffle(order[shuffled_from:pool])
        return order

    def _with_pool_first(self, order: Tokens, pool: int) -> Tokens:
        """`order` with `pool` rows, drawn by the seed, moved to the front."""
        if pool == len(order):
            return order
        draw = np.random.Generator(np.random.PCG64(key(self._seed, "pool")))
        drawn = np.zeros(len(order), np.bool_)
        drawn[draw.permutation(len(order))[:pool]] = True
        inside = drawn[order]
        return np.concatenate([order[inside], order[~inside]])
