"""Where documents come from: files, folders, globs, standard input, `python-docs` and the hub.

A source is a list of parts, such as files. Every part yields its documents in the same order each
time, and has a fingerprint that identifies its content.
"""

from __future__ import annotations

import atexit
import functools
import glob
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from crammed.config import DataConfig, SourceConfig
from crammed.data.preparing.read.python_docs import PythonDocs
from crammed.data.preparing.read.search import find_files, printable
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.hashes import sha256
from crammed.files.scratch import scratch_folder
from crammed.formats import hub
from crammed.formats.blocks import LineBlock
from crammed.formats.documents import (
    BINARY,
    READERS,
    ReadOptions,
    cut_into_blocks,
    format_of,
    read_block,
)
from crammed.formats.lines import COMPRESSIONS, File, Tap, read_faults
from crammed.formats.records import is_json

_COMPRESSED = 4
"""About how many bytes of text there are in a byte of a compressed file."""


class SourceChanged(InputError):
    """A part has changed since reading it began."""


class Part(Protocol):
    """A series of documents that is read in one go, such as a file; can be pickled."""

    @property
    def name(self) -> str:
        """Its name in reports; for a file, its name without the folder."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content, without the names of folders on this machine."""
        ...

    def state(self) -> dict[str, Any]:
        """What changes on this machine whenever the content does; quick to find out."""
        ...

    def documents(self) -> Iterator[str]:
        """The documents, always in the same order.

        Raises:
            InputError: the content is damaged or unexpected; names the file and the line.
        """
        ...


@dataclass(frozen=True)
class FilePart:
    """The documents of one file."""

    name: str
    file: File
    format: str
    """Its key in `READERS`."""
    options: ReadOptions

    def fingerprint(self) -> dict[str, Any]:
        self.check()
        with read_faults(self.file):
            path = self.file.path
            return {"name": self.name, "bytes": path.stat().st_size, "sha256": sha256(path)}

    def state(self) -> dict[str, Any]:
        self.check()
        with read_faults(self.file):
            now = self.file.path.stat()
        times = {"modified": now.st_mtime_ns, "changed": now.st_ctime_ns}
        return {"device": now.st_dev, "inode": now.st_ino, "bytes": now.st_size, **times}

    def documents(self) -> Iterator[str]:
        self.check()
        return READERS[self.format](self.file, self.options)

    @property
    def is_binary(self) -> bool:
        """Whether the file is a table of a binary format."""
        return self.format in BINARY

    def text_bytes(self) -> int:
        """About how many bytes of text the file holds, by its size; 0 if there is no file."""
        try:
            size = self.file.path.stat().st_size
        except OSError:  # reading it will report what is wrong
            return 0
        packed = self.is_binary or self.file.path.suffix.lower() in COMPRESSIONS
        return size * (_COMPRESSED if packed else 1)

    def blocks(self, size: int, taps: list[Tap]) -> Iterator[LineBlock] | None:
        """As `cut_into_blocks`."""
        self.check()
        return cut_into_blocks(self.file, self.format, self.options, size, taps)

    def documents_of(self, block: LineBlock) -> Iterator[str]:
        """The documents of one of its blocks."""
        return read_block(block, self.file, self.format, self.options)

    def check(self) -> None:
        """Check what can be checked without reading the file.

        Raises:
            InputError: the file is gone, empty or not a regular file, or `where` is used with plain
                text.
        """
        try:
            found = self.file.path.stat()
        except OSError as error:
            raise InputError(f"{self.file.shown} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{self.file.shown} is not a regular file: save its text in one")
        if found.st_size == 0:
            raise InputError(f"{self.file.shown} is empty")
        if self.options.where and self.format == ".txt":
            raise InputError(
                f"{self.file.shown} is plain text, whose documents have no fields: leave `where` "
                "out for it"
            )


@dataclass(frozen=True)
class Source:
    """One entry of `data.sources`."""

    name: str
    parts: tuple[Part, ...]
    weight: float
    """How often each document is packed."""
    share: float | None
    """Its part of the text, which sets the weight; relative to those of the other sources."""
    max_characters: int | None
    """Begin no further document once this many have been read; None for no limit."""
    reading: dict[str, Any]
    """What determines a part's documents besides its fingerprint, as plain values."""


def open_sources(data: DataConfig) -> list[Source]:
    """Find the parts of every source; files are not read yet, but hub data sets are looked up.

    Raises:
        InputError: there is no source, or one is missing, empty or of an unknown format.
    """
    if not data.sources:
        raise InputError("no data: name a file or folder of text, as in --data my-text.jsonl.zst")
    sources = [_open(config, data) for config in data.sources]
    names = Counter(source.name for source in sources)
    return [
        replace(source, name=f"{source.name} ({number})") if names[source.name] > 1 else source
        for number, source in enumerate(sources, 1)
    ]


def check_text(data: DataConfig) -> None:
    """Read the first document of each source on disk, to find a wrong field at once.

    Raises:
        InputError: as `open_sources` and `Part.documents`.
    """
    on_disk = tuple(source for source in data.sources if source.is_on_disk)
    if not on_disk or data.unreadable != "stop":
        return
    for source in open_sources(data.model_copy(update={"sources": on_disk})):
        next(source.parts[0].documents(), None)


def _open(config: SourceConfig, data: DataConfig) -> Source:
    options = ReadOptions(
        config.documents or data.documents, config.text_field or data.text_field, config.where
    )
    reading = asdict(options)
    parts: list[Part]
    if config.path == "python-docs":
        if config.where:
            raise InputError("python-docs has no fields: leave `where` out for it")
        name, parts = "python-docs", [PythonDocs()]
    elif config.path.startswith("hub:"):
        name = config.path.removeprefix("hub:")
        part = hub.open_part(name, config.text_field, options)
        reading = {**asdict(part.options), "rows_per_document": part.dataset.rows_per_document}
        parts = [part]
    elif config.path == "-":
        name, parts = "standard-input", [_standard_input(options)]
    else:
        name = printable(Path(config.path).name or Path(config.path).resolve().name)
        files = _file_parts(config.path, options)
        if data.unreadable == "stop":
            for file in files:
                file.check()
        parts = [*files]
    return Source(
        config.name or name,
        tuple(parts),
        config.weight,
        config.share,
        config.max_characters,
        reading,
    )


def _file_parts(name: str, options: ReadOptions) -> list[FilePart]:
    return [
        FilePart(
            printable(file.name),
            File(file.absolute(), printable(_below(file, name))),
            format_of(file) or "",
            options,
        )
        for file in find_files(name)
    ]


def _below(file: Path, source: str) -> Path:
    """The path that messages show: it begins at the source's folder, whatever leads there."""
    root = Path(source).expanduser()
    while glob.has_magic(str(root)):
        root = root.parent
    if root == file or not file.is_relative_to(root):
        return Path(file.name)
    return Path(root.resolve().name) / file.relative_to(root)


def _standard_input(options: ReadOptions) -> FilePart:
    file = File(_spooled(), "standard input")
    part = FilePart("standard-input", file, ".txt", options)
    if file.path.stat().st_size and is_json(file):
        part = FilePart(part.name, file, ".jsonl", options)
    part.check()
    return part


@functools.cache
def _spooled() -> Path:
    """Standard input, which can be read only once, as a file kept until this process ends."""
    # The command line puts the null device in place of a standard input that is closed.
    if sys.stdin is None or getattr(sys.stdin, "name", None) == os.devnull:
        raise InputError("standard input is closed: pipe text into it, or name a file")
    if sys.stdin.isatty():
        raise InputError("standard input is a terminal: pipe text into it, or name a file")
    scratch = ExitStack()
    atexit.register(scratch.close)
    spooled = scratch.enter_context(scratch_folder()) / "standard-input"
    with disk_faults(spooled), spooled.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return spooled
