"""Reads the lines of one text file: decompressed, decoded and numbered."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from crammed.errors import InputError
from crammed.files.regular import ordinary

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

_BUFFER = 1 << 16  # bytes
_READ = 1 << 20  # bytes of a compressed file
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
def open_bytes(file: File, taps: list[Tap] | None = None) -> Iterator[io.BufferedReader]:
    """The file's content, decompressed; errors about damage become an `InputError`.

    Args:
        taps: if given, the `Tap` that the file's own bytes pass through is appended to it.
    """
    with read_faults(file), open(file.path, "rb", 0) as raw:
        tap = Tap(raw)
        if taps is not None:
            taps.append(tap)
        source: io.RawIOBase = tap if taps is not None else raw
        with _decompressed(source, file.path.suffix.lower()) as stream:
            yield io.BufferedReader(stream, _BUFFER)
        if taps is not None:
            tap.finish()


def _decompressed(source: io.RawIOBase, suffix: str) -> Any:
    if suffix == ".zst":
        return pa.input_stream(io.BufferedReader(source, _READ), compression="zstd")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if suffix in openers:
        return openers[suffix](io.BufferedReader(source, _READ), "rb")
    return nullcontext(source)


class Tap(io.RawIOBase):
    """Hashes what is read from a file, and counts it.

    Attributes:
        bytes: number of bytes read so far.
        sha256: hash of the whole file, in hex, once it has been read to its end.
    """

    sha256: str | None = None

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        if count:
            self._sha256.update(memoryview(buffer)[:count])
            self.bytes += count
        return count

    def finish(self) -> None:
        """Read what is left."""
        while self.read(_READ):
            pass
        self.sha256 = self._sha256.hexdigest()


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
