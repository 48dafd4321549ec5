"""Streams between a file and its lines: hashed, decompressed, translated to UTF-8."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, BinaryIO

import pyarrow as pa

BUFFER = 1 << 16  # bytes
_READ = 1 << 20  # bytes of a compressed file

_BEGINNINGS = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}
COMPRESSIONS = tuple(_BEGINNINGS)
_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor

_WIDE = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Byte order marks of encodings other than UTF-8; the longer ones first."""
_TRANSLATED = re.compile(
    b"|".join([*(form.pattern for form in _BEGINNINGS.values()), *map(re.escape, _WIDE)])
)
_MOST_RETURNS = 9
_ODD = re.compile(rb"(?<!\r)\r{2,%d}\n|\r(?!\n)" % _MOST_RETURNS)
"""A line end as some programs write it, with further carriage returns, or such a return alone."""


class _Readable(io.RawIOBase):
    def readable(self) -> bool:
        return True


class Tap(_Readable):
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


def decompressed(source: io.RawIOBase, suffix: str) -> Any:
    """A context manager of the content, unpacked as the suffix or the first bytes say."""
    if suffix not in COMPRESSIONS:
        buffered = io.BufferedReader(source, BUFFER)
        begin = buffered.peek(BUFFER)
        suffix = next((key for key, form in _BEGINNINGS.items() if form.match(begin)), "")
        if not suffix:
            return nullcontext(buffered)
    else:
        buffered = io.BufferedReader(source, _READ)
    if suffix == ".zst":
        return pa.input_stream(buffered, compression="zstd")
    if suffix == ".gz":
        return gzip.open(buffered, "rb")
    return _Unpacked(buffered, bz2.BZ2Decompressor if suffix == ".bz2" else lzma.LZMADecompressor)


def is_stored_as_read(content: bytes, suffix: str) -> bool:
    """Whether none of the streams here would change anything about a file's content."""
    return suffix not in COMPRESSIONS and b"\r" not in content and not _TRANSLATED.match(content)


def as_utf8(stream: io.BufferedReader) -> io.BufferedReader:
    """The same text in UTF-8 if it begins with the byte order mark of UTF-16 or UTF-32."""
    begin = stream.peek(BUFFER)
    name = next((name for mark, name in _WIDE.items() if begin.startswith(mark)), None)
    if name is None:
        return stream
    decoder = codecs.getincrementaldecoder(name)()

    def translate(data: bytes) -> bytes:
        try:
            return decoder.decode(data, final=not data).encode()
        except UnicodeDecodeError as error:
            raise EOFError(f"damaged {name.upper()}") from error

    return io.BufferedReader(_Translated(stream, translate), BUFFER)


def with_line_feeds(stream: io.BufferedReader, *, always: bool) -> io.BufferedReader:
    """The same text with a line feed for each carriage return that none follows.

    Several carriage returns before a line feed, as a Windows program writes that converts line ends
    twice, end one line.

    Args:
        always: whether to do so anywhere, or only if no line feed is among the first bytes, as in
            files of old Macs.
    """
    if not always:
        begin = stream.peek(BUFFER)
        if b"\n" in begin or b"\r" not in begin:
            return stream
    held = b""

    def translate(data: bytes) -> bytes:
        nonlocal held
        text, held = held + data, b""
        if data and text.endswith(b"\r"):  # a line feed may follow
            end = max(len(text.rstrip(b"\r")), len(text) - _MOST_RETURNS)
            text, held = text[:end], text[end:]
        if text.count(b"\r") == text.count(b"\r\n"):
            return text
        return _ODD.sub(b"\n", text)

    return io.BufferedReader(_Translated(stream, translate), BUFFER)


class _Unpacked(_Readable):
    """The content of a .bz2 or .xz file, whose streams follow one another.

    Where what follows a stream begins no other, Python's own readers leave out the rest silently.
    """

    def __init__(self, source: BinaryIO, new: Callable[[], _Decompressor]) -> None:
        self._source = source
        self._new = new
        self._stream = new()

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            data = b""
            if self._stream.eof:
                if not (data := self._rest()):
                    return 0
                self._stream = self._new()
            elif self._stream.needs_input and not (data := self._source.read(BUFFER)):
                raise EOFError("its last compressed stream is cut off")
            content = self._stream.decompress(data, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _rest(self) -> bytes:
        """Some of what follows the stream and any zeros behind it, which are padding."""
        data = self._stream.unused_data
        while not (rest := data.lstrip(b"\0")) and (data := self._source.read(BUFFER)):
            pass
        return rest


class _Translated(_Readable):
    """A stream whose pieces pass through a function, which gets no bytes at the end."""

    def __init__(self, stream: BinaryIO, translate: Callable[[bytes], bytes]) -> None:
        self._stream = stream
        self._translate = translate
        self._ready = memoryview(b"")
        self._ended = False

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            data = self._stream.read(BUFFER)
            self._ended = not data
            self._ready = memoryview(self._translate(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
