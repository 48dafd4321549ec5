"""Reads the lines of one text file: decompressed, decoded and numbered."""

from __future__ import annotations

import codecs
import io
import json
import lzma
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import pyarrow as pa

from crammed.errors import InputError, in_one_line
from crammed.files.faults import AGAIN
from crammed.files.regular import ordinary
from crammed.formats.streams import (
    BUFFER,
    Tap,
    as_utf8,
    decompressed,
    is_stored_as_read,
    with_line_feeds,
)

LARGEST = 1 << 26
"""Bytes in a line and characters in a document at most, so that none fills the memory."""

_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8


class CutShort(InputError):
    """A file is damaged, and what follows the damage cannot be read."""


@dataclass
class Faults:
    """What to do about damaged records: stop at the first, or leave them out and count them.

    Attributes:
        records: records left out, or lines of a broken row. What follows damage that nothing can be
            read after counts as one, unless the file says how many there are.
        first: what is wrong with the first of them.
        ignored: number of files of unknown formats in archives, by suffix.
    """

    skip: bool = False
    records: int = 0
    first: str = ""
    ignored: Counter[str] = field(default_factory=Counter)

    def found(self, error: InputError, records: int = 1) -> None:
        """Count damaged records, or raise the error."""
        if not self.skip:
            raise error
        self.records += records
        self.first = self.first or str(error)

    def add(self, others: Faults) -> None:
        """Count what others have counted."""
        self.records += others.records
        self.first = self.first or others.first
        self.ignored += others.ignored


STOP = Faults()  # stops at the first fault


@dataclass(frozen=True)
class File:
    """A file to read, and its name in messages."""

    path: Path
    shown: str
    stream: io.BufferedReader | None = field(default=None, compare=False, repr=False)
    """The content of a file in an archive, which can be read only once."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """The content, as stored, of a small file that has been read."""


def printable(path: str | PurePath) -> str:
    r"""A path for a message, with bytes that are not UTF-8 and control characters as ``\xNN``."""
    text = os.fspath(path)
    if text.isascii() and text.isprintable():  # as most are, and there may be millions
        return text
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c >= " " and c != "\x7f" else f"\\x{ord(c):02x}" for c in text)


Numbered = Iterator[tuple[int, str | InputError]]
"""Lines with their numbers; instead of a line that cannot be read, what is wrong with it.

The cause of that is a `UnicodeDecodeError` if the line is not UTF-8.
"""


_DAMAGE = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    pa.ArrowException,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,  # a zip file of a newer version
    UnicodeDecodeError,  # a name in a zip file
)


@contextmanager
def read_faults(file: File) -> Iterator[None]:
    """Turn libraries' errors about a damaged file into an `InputError`."""
    try:
        yield
    except (OSError, *_DAMAGE) as error:
        strerror = getattr(error, "strerror", None)  # without the path
        why = strerror or in_one_line(error).replace(str(file.path), file.shown)
        # A disk that fails says nothing about the rest of the file.
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{file.shown} cannot be read to its end: {why}") from error
        raise CutShort(f"{file.shown} cannot be read to its end: {why}; {AGAIN}") from error


@contextmanager
def open_stored(file: File) -> Iterator[io.RawIOBase]:
    """The file's bytes as they are stored."""
    if file.stream is not None:
        yield file.stream  # type: ignore[misc]  # has what is needed of a raw stream
        return
    if file.content is not None:
        yield io.BytesIO(file.content)  # type: ignore[misc]
        return
    with open(file.path, "rb", 0) as raw:
        yield raw


@contextmanager
def open_bytes(file: File, taps: list[Tap] | None = None) -> Iterator[io.BufferedReader]:
    """The file's content, decompressed; errors about damage become an `InputError`.

    Args:
        taps: if given, the `Tap` that the file's own bytes pass through is appended to it.
    """
    with read_faults(file), open_stored(file) as raw:
        source = raw
        if taps is not None:
            source = tap = Tap(raw)
            taps.append(tap)
        with decompressed(source, file.path.suffix.lower()) as stream:
            yield io.BufferedReader(stream, BUFFER)
        if taps is not None:
            tap.finish()


@contextmanager
def open_lines(
    file: File, *, plain: bool = False, taps: list[Tap] | None = None
) -> Iterator[io.BufferedReader]:
    """As `open_bytes`, in UTF-8, with lines that end with a line feed.

    Args:
        plain: whether a carriage return also ends a line if others end with a line feed, as in
            plain text.
    """
    if file.content is not None and is_stored_as_read(file.content, file.path.suffix.lower()):
        yield io.BufferedReader(io.BytesIO(file.content), BUFFER)
        return
    with open_bytes(file, taps) as stream:
        yield with_line_feeds(as_utf8(stream), always=plain)


def lines(file: File) -> Iterator[tuple[int, str]]:
    """Numbered lines with their line breaks, without a byte order mark."""
    with open_lines(file) as stream:
        for number, line in lines_of(stream, file):
            if isinstance(line, InputError):
                raise line
            yield number, line


def json_values(path: Path) -> Iterator[Any]:
    """The value in each line of a file that we wrote.

    Raises:
        InputError: the file cannot be read.
        ValueError: a line is not JSON.
    """
    return (json.loads(line) for _, line in lines(File(ordinary(path), str(path))))


def lines_of(stream: BinaryIO, file: File, first: int = 1) -> Numbered:
    """The lines of an open stream whose next line has the number `first`."""
    number = first
    while line := stream.readline(LARGEST + 1):
        if len(line) > LARGEST:
            read_line(stream, line)
            fault = f"longer than {LARGEST:,} bytes, which no document is"
            yield number, InputError(f"{file.shown}, line {number}: {fault}")
        else:
            if number == 1:
                line = line.removeprefix(_MARK)
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                yield number, _not_utf8(file, f", line {number}", error)
        number += 1


def read_line(stream: BinaryIO, begin: bytes = b"") -> bytes:
    """The rest of a line; beyond `LARGEST` bytes it is read, but not kept.

    Args:
        begin: what of the line has been read.
    """
    kept, piece = [begin], begin
    size = len(begin)
    while not piece.endswith(b"\n") and (piece := stream.readline(BUFFER)):
        if size <= LARGEST:
            kept.append(piece)
        size += len(piece)
    line = b"".join(kept)
    return line if len(line) == size else line.removesuffix(b"\n") + b"\n"


def skip_space(stream: io.BufferedReader) -> tuple[int, bytes]:
    """Skip to the first byte that is not white space, without consuming it.

    Returns:
        The number of lines that ended before that byte, and the byte; empty if there is none.
    """
    if stream.peek(BUFFER).startswith(_MARK):
        stream.read(len(_MARK))
    ended = 0
    while data := stream.peek(BUFFER):
        ink = data.lstrip()
        ended += stream.read(len(data) - len(ink)).count(b"\n")
        if ink:
            return ended, ink[:1]
    return ended, b""


def chunks_of(stream: BinaryIO, file: File) -> Iterator[str]:
    """The text in pieces of up to `BUFFER` bytes, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        while data := stream.read(BUFFER):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise CutShort(str(_not_utf8(file))) from error


def _not_utf8(file: File, place: str = "", cause: UnicodeDecodeError | None = None) -> InputError:
    fault = InputError(
        f"{file.shown}{place}: not UTF-8 text, but a binary file, or text in another encoding that "
        "iconv can convert (text from Windows: iconv -f WINDOWS-1252 -t UTF-8)"
    )
    fault.__cause__ = cause  # which holds the bytes
    return fault
