"""Cuts a file of lines into blocks that can be read apart from one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crammed.formats.lines import File, Tap, open_bytes


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
    file: File, size: int, *, to_blank_line: bool, taps: list[Tap] | None = None
) -> Iterator[LineBlock]:
    """The file in blocks of at least `size` bytes.

    Args:
        to_blank_line: whether each block but the last ends with a blank line, not with any line.
        taps: as for `open_bytes`.

    Raises:
        InputError: the file is damaged.
    """
    first = 1
    with open_bytes(file, taps) as stream:
        while data := stream.read(size):
            rest = [stream.readline()]
            while to_blank_line and rest[-1].strip():
                rest.append(stream.readline())
            data = b"".join([data, *rest])
            yield LineBlock(data, first)
            first += data.count(b"\n")
