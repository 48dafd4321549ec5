"""Cuts a file of lines into blocks that can be read apart from one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crammed.formats import lines
from crammed.formats.lines import File, open_lines, read_line
from crammed.formats.streams import Tap


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
    """The file in blocks of at least `size` bytes.

    What makes a line or a document too long is left out of its block.

    Args:
        to_blank_line: whether each block but the last ends with a blank line, not with any line.
        plain: as for `open_lines`.
        taps: as for `open_bytes`.

    Raises:
        InputError: the file is damaged.
    """
    number = 1
    with open_lines(file, plain=plain, taps=taps) as stream:
        while data := stream.read(size):
            first, number = number, number + data.count(b"\n")
            begin, kept, left = data[data.rfind(b"\n") + 1 :], [data], lines.LARGEST + 1
            while line := read_line(stream):
                number += 1
                if left > 0:
                    kept.append(line)
                left -= len(line)
                if not (to_blank_line and (begin + line).strip()):
                    break
                begin = b""
            yield LineBlock(b"".join(kept), first)
