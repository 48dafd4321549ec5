"""What is read in one go, such as a file: its documents, and what identifies its content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from crammed.errors import InputError
from crammed.extras import version_of
from crammed.files.hashes import sha256
from crammed.files.regular import open_to_read
from crammed.formats.blocks import LineBlock
from crammed.formats.documents import (
    BINARY,
    ReadOptions,
    cut_into_blocks,
    read_block,
    read_documents,
)
from crammed.formats.lines import STOP, Faults, File, open_bytes, printable, read_faults
from crammed.formats.plain import SMALL
from crammed.formats.row_groups import RowGroups, row_groups
from crammed.formats.streams import COMPRESSIONS, Tap

_COMPRESSED = 4
"""About how many bytes of text there are in a byte of a compressed file."""
_COMPRESSED_NOTHING = 1 << 10
"""Bytes in a compressed file without content at most; it may store its name."""
_READ_BY = {
    **dict.fromkeys((".html", ".warc"), ("resiliparse",)),
    ".md": ("markdown-it-py",),
    **dict.fromkeys((".zip", ".tar"), ("markdown-it-py", "resiliparse")),
}
"""Libraries that decide what the text of a file is; an archive may hold files of any kind."""


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

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        """The documents, always in the same order.

        Args:
            faults: what to do about damaged records.

        Raises:
            InputError: the content is damaged or unexpected; names the file and the line.
        """
        ...


@dataclass(frozen=True, slots=True)
class FilePart:
    """The documents of one file; there may be millions of these, so they hold little."""

    path: str
    shown: str
    """What messages call it."""
    format: str
    """Its key in `READERS`."""
    options: ReadOptions
    """Whose `documents` is not auto for plain text."""
    held: File | None = field(default=None, compare=False, repr=False)
    """The file with its content, if that has been read: see `loaded`."""

    @property
    def name(self) -> str:
        return printable(os.path.basename(self.path))

    @property
    def file(self) -> File:
        return self.held or File(Path(self.path), self.shown)

    def loaded(self) -> FilePart:
        """The same part with its content if that is small, so that it is read only once.

        Raises:
            InputError: it cannot be read.
        """
        if self.is_binary or self.size() >= SMALL:
            return self
        file = self.file
        with read_faults(file), open_to_read(file.path) as opened:
            content = opened.read()
        held = File(file.path, self.shown, content=content)
        return FilePart(self.path, self.shown, self.format, self.options, held)

    def fingerprint(self) -> dict[str, Any]:
        file = self.file
        if (content := file.content) is not None:
            found = hashlib.sha256(content).hexdigest()
            return {"name": self.name, "bytes": len(content), "sha256": found}
        size = self.check().st_size
        with read_faults(file):
            return {"name": self.name, "bytes": size, "sha256": sha256(file.path)}

    def state(self) -> dict[str, Any]:
        now = self.check()
        times = {"modified": now.st_mtime_ns, "changed": now.st_ctime_ns}
        return {"device": now.st_dev, "inode": now.st_ino, "bytes": now.st_size, **times}

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        if self.held is None:
            self.check()
        return read_documents(self.file, self.format, self.options, faults)

    @property
    def read_by(self) -> list[str]:
        """The libraries on which its text depends, and their versions."""
        return [f"{name} {version_of(name)}" for name in _READ_BY.get(self.format, ())]

    @property
    def is_binary(self) -> bool:
        """Whether the file is a table of a binary format."""
        return self.format in BINARY

    def size(self) -> int:
        """Its bytes; 0 if there is no file."""
        try:
            return os.stat(self.path).st_size
        except OSError:  # reading it will report what is wrong
            return 0

    def is_empty(self) -> bool:
        """Whether there is nothing in the file, or compressed nothing."""
        size, ending = self.size(), os.path.splitext(self.path)[1].lower()
        if ending in COMPRESSIONS and 0 < size <= _COMPRESSED_NOTHING:
            with suppress(InputError), open_bytes(self.file) as stream:
                return not stream.peek(1)
        return size == 0 and os.path.isfile(self.path)

    def text_bytes(self) -> int:
        """About how many bytes of text the file holds, by its size."""
        packed = self.is_binary or os.path.splitext(self.path)[1].lower() in COMPRESSIONS
        return self.size() * (_COMPRESSED if packed else 1)

    def blocks(self, size: int, taps: list[Tap]) -> Iterator[LineBlock] | None:
        """As `cut_into_blocks`."""
        self.check()
        return cut_into_blocks(self.file, self.format, self.options, size, taps)

    def row_groups(self, size: int) -> list[RowGroups] | None:
        """As `row_groups`; None if it is no Parquet file."""
        self.check()
        if self.format != ".parquet":
            return None
        return row_groups(self.file, self.options.text_field, size)

    def documents_of(self, block: LineBlock | RowGroups, faults: Faults = STOP) -> Iterator[str]:
        """The documents of one of its blocks, or of some of its row groups."""
        return read_block(block, self.file, self.format, self.options, faults)

    def check(self) -> os.stat_result:
        """Check what can be checked without reading the file, and return what the system knows.

        Raises:
            InputError: the file is gone, empty or not a regular file, or has no fields for `where`.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise InputError(f"{self.shown} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{self.shown} is not a regular file: save its text in one")
        if found.st_size == 0:
            raise InputError(f"{self.shown} is empty")
        self.options.check(self.shown, self.format)
        return found
