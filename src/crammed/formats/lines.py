"""Reads the lines of one text file: decompressed, decoded and numbered."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from crammed.errors import InputError
from crammed.files.regular import ordinary

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

_BUFFER = 1 << 16  # bytes
_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8


@dataclass(frozen=True)
class File:
    """A file to read, and its name in messages."""

    path: Path
    shown: str


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as UTF-8 text, decompressed if its suffix says so.

    Raises:
        InputError: the file is unreadable, truncated, corrupt, or not UTF-8.
    """
    file = File(ordinary(path), str(path))
    try:
        with open_bytes(file) as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: is it a binary file?") from error


@contextmanager
def read_faults(file: File) -> Iterator[None]:
    """Turn libraries' errors about a damaged file into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        strerror = getattr(error, "strerror", None)  # without the path
        why = strerror or " ".join(str(error).split()).replace(str(file.path), file.shown)
        raise InputError(f"{file.shown} cannot be read to its end: {why}") from error


@contextmanager
def open_bytes(file: File) -> Iterator[io.BufferedReader]:
    """The file's content, decompressed; errors about damage become an `InputError`."""
    with read_faults(file):
        suffix = file.path.suffix.lower()
        if suffix == ".zst":
            with pa.input_stream(str(file.path), compression="zstd") as stream:
                yield io.BufferedReader(stream, _BUFFER)
            return
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        with openers.get(suffix, open)(file.path, "rb") as stream:
            yield io.BufferedReader(stream, _BUFFER)


def lines(file: File) -> Iterator[tuple[int, str]]:
    """Numbered lines with their line breaks, without a byte order mark."""
    with open_bytes(file) as stream:
        yield from lines_of(stream, file)


def lines_of(stream: BinaryIO, file: File, first: int = 1) -> Iterator[tuple[int, str]]:
    """As `lines`, but from an open stream whose next line has the number `first`."""
    for number, line in enumerate(stream, first):
        if number == 1:
            if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise InputError(
                    f"{file.shown} is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
                )
            line = line.removeprefix(_MARK)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise _not_utf8(file, f", line {number}") from error
        yield number, text


def skip_space(stream: io.BufferedReader) -> tuple[int, bytes]:
    """Skip to the first byte that is not white space, without consuming it.

    Returns:
        The number of lines that ended before that byte, and the byte; empty if there is none.
    """
    if stream.peek(_BUFFER).startswith(_MARK):
        stream.read(len(_MARK))
    ended = 0
    while data := stream.peek(_BUFFER):
        ink = data.lstrip()
        ended += stream.read(len(data) - len(ink)).count(b"\n")
        if ink:
            return ended, ink[:1]
    return ended, b""


def chunks_of(stream: BinaryIO, file: File) -> Iterator[str]:
    """The text in pieces of up to `_BUFFER` bytes, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        while data := stream.read(_BUFFER):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(file) from error


def _not_utf8(file: File, place: str = "") -> InputError:
    return InputError(
        f"{file.shown}{place}: not UTF-8 text, but a binary file, or text in another encoding that "
        "iconv can convert"
    )
