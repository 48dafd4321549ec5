"""Reads the pages in web archives: WARC (ISO 28500), and the texts made of them, WET."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesHeaderParser

from crammed.errors import InputError
from crammed.formats import lines
from crammed.formats.lines import CutShort, Faults, File, open_bytes
from crammed.formats.web import encoding_of, require_web, text_of_page

_WANTED = ("response", "resource", "conversion")
_HTML = ("text/html", "application/xhtml+xml")
_LONGEST_LINE = 1 << 16  # bytes of a header
_MOST_LINES = 1_000
_READ = 1 << 16  # bytes
_GZIP_OR_ZLIB = 47  # for `zlib`: the largest window, and whichever of the two headers is there


def archived_pages(file: File, faults: Faults) -> Iterator[str]:
    """The texts of the pages in a web archive, in order.

    Raises:
        InputError: the archive is damaged.
    """
    require_web()
    with open_bytes(file) as stream:
        number = 0
        while (headers := _record(stream, file, number + 1)) is not None:
            number += 1
            place = f"{file.shown}, record {number}"
            size = _size(headers, place)
            wanted = _value(headers, "WARC-Type") in _WANTED
            looked_at = size if size <= lines.LARGEST else _READ
            block = stream.read(looked_at) if wanted else b""
            if len(block) + _skip(stream, size - len(block)) < size:
                raise CutShort(f"{place} is cut off")
            if not wanted:
                continue
            try:
                text = _text(headers, block, place, size)
            except InputError as error:
                faults.found(error)
            else:
                if text:
                    yield text


def _record(stream: io.BufferedReader, file: File, number: int) -> Message | None:
    """The headers of the next record; None at the end."""
    while (line := stream.readline(_LONGEST_LINE)) in (b"\r\n", b"\n"):
        pass
    if not line:
        return None
    gathered: list[bytes] = []
    while line.startswith(b"WARC/") or gathered:
        line = stream.readline(_LONGEST_LINE)
        if line in (b"\r\n", b"\n"):
            return BytesHeaderParser().parsebytes(b"".join(gathered))
        if not line.endswith(b"\n") or len(gathered) == _MOST_LINES:
            break
        gathered.append(line)
    raise CutShort(f"{file.shown}, record {number}: no record of a web archive, or cut off")


def _size(headers: Message, place: str) -> int:
    text = _value(headers, "Content-Length")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise CutShort(f"{place} has no length")
    return int(text)


def _skip(stream: io.BufferedReader, size: int) -> int:
    """Read so many bytes, or as many as there are; returns their number."""
    left = size
    while left and (data := stream.read(min(left, _READ))):
        left -= len(data)
    return size - left


def _text(headers: Message, block: bytes, place: str, size: int) -> str:
    """The text of a record; empty if it holds neither a page nor text.

    Args:
        block: its content, or the beginning of it if that is too long to be read.
        size: bytes of the whole content.
    """
    kind = _media_type(headers)
    sent: Message | None = None
    if kind == "application/http" or (kind == "" and block.startswith(b"HTTP/")):
        head, _, block = block.partition(b"\r\n\r\n")
        sent = BytesHeaderParser().parsebytes(head.partition(b"\n")[2])
        kind = _media_type(sent)
    if kind not in (*_HTML, "text/plain"):
        return ""
    if size > lines.LARGEST:
        raise InputError(f"{place}: longer than {lines.LARGEST:,} bytes")
    charset = None
    if sent is not None:
        block, charset = _decoded(sent, block, place), sent.get_content_charset()
    if kind == "text/plain":
        return block.decode(encoding_of(block, charset), "replace")
    return text_of_page(block, place, charset)


def _value(headers: Message, name: str) -> str:
    return str(headers.get(name, "")).strip().lower()


def _media_type(headers: Message) -> str:
    return _value(headers, "Content-Type").partition(";")[0].strip()


def _decoded(headers: Message, body: bytes, place: str) -> bytes:
    """The body of a response as it was before it was sent.

    Many crawlers store it so already, and keep the headers.
    """
    if "chunked" in _value(headers, "Transfer-Encoding"):
        body = _joined_chunks(body)
    coding = _value(headers, "Content-Encoding")
    if coding in ("gzip", "x-gzip", "deflate") and body[:1] in (b"\x1f", b"\x78"):
        try:
            body = zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, lines.LARGEST + 1)
        except zlib.error as error:
            raise InputError(f"{place}: {error}") from error
        if len(body) > lines.LARGEST:
            raise InputError(f"{place}: longer than {lines.LARGEST:,} bytes")
    elif coding in ("br", "zstd", "compress") and not body.lstrip().startswith(b"<"):
        raise InputError(f"{place}: a page that is compressed as {coding}, which is not read")
    return body


def _joined_chunks(body: bytes) -> bytes:
    """The content of a chunked body; the body itself if it is not chunked after all."""
    chunks: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at, at + 40)
        try:
            size = int(body[at:end].partition(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0:
            return body
        if size == 0:
            return b"".join(chunks)
        chunks.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
