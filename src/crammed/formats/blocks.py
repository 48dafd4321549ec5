"""Cuts a file of lines into blocks that can be read apart from one another."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from crammed.formats import lines
from crammed.formats.lines import File, open_lines, read_line
from crammed.formats.streams import BUFFER, Tap


@dataclass(frozen=True)
class LineBlock:
    """Whole lines of a file.

    Attributes:
        data: their bytes, decompressed.
        first_line: number of the first of them.
    """

    data: bytes
    first_line: int


def line_blocks(
    file: File, size: int, *, to_blank_line: bool, plain: bool, taps: list[Tap] | None = None
) -> Iterator[LineBlock]:
    """The file in blocks of at least `size` bytes, up to damage if there is any.

    What makes a line or a document too long is left out of its block.

    Args:
        to_blank_line: whether each block but the last ends with a blank line, not with any line.
        plain: as for `open_lines`.
        taps: as for `open_bytes`.

    Raises:
        InputError: the file is damaged.
    """
    number = 1
    fault: Exception | None = None
    with open_lines(file, plain=plain, taps=taps) as stream:
        while fault is None:
            gathered = io.BytesIO()  # whose value is not copied, as that of joined pieces would be
            first = number
            try:
                for piece, ended in _pieces(stream, size, to_blank_line=to_blank_line):
                    gathered.write(piece)
                    number += ended
            except Exception as error:  # which `open_lines` turns into an InputError
                fault = error
            data = gathered.getvalue()
            del gathered
            if fault is not None:
                data = data[: _last_end(data, to_blank_line=to_blank_line)]
            if data:
                yield LineBlock(data, first)
            elif fault is None:
                return
        raise fault


def _pieces(
    stream: io.BufferedReader, size: int, *, to_blank_line: bool
) -> Iterator[tuple[bytes, int]]:
    """The next block in pieces, each with the number of lines that end in it."""
    begin = b""
    while size > 0:
        if not (piece := stream.read1(min(size, BUFFER))):
            return
        yield piece, piece.count(b"\n")
        size -= len(piece)
        at = piece.rfind(b"\n") + 1
        begin = piece[at:] if at else begin + piece
    left = lines.LARGEST + 1
    while line := read_line(stream):
        yield line if left > 0 else b"", 1
        left -= len(line.decode(errors="ignore"))  # in characters, as `plain.divide` counts
        if not to_blank_line or _is_blank(begin + line):
            return
        begin = b""


def _last_end(data: bytes, *, to_blank_line: bool) -> int:
    """Where the last whole line of some data ends, or the last blank one; 0 if there is none."""
    end = data.rfind(b"\n") + 1
    while to_blank_line and end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        if _is_blank(data[begin:end]):
            break
        end = begin
    return end


def _is_blank(line: bytes) -> bool:
    """Whether a line separates documents for `plain.divide`, which knows all of Unicode's space."""
    return len(line) <= lines.LARGEST and not line.decode(errors="replace").strip()
