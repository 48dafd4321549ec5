"""Tables for a terminal: plain in a file, and never cut off."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from crammed.terminal.quiet import visible
from crammed.terminal.wrapping import WIDEST, hanging

Printed = Table | Text


def new_table(title: str | None = None) -> Table:
    """A table without borders."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def add_column(
    table: Table, name: str, *, numeric: bool = False, widest: int | None = None
) -> None:
    """Add a column: of numbers, which never wrap, or of text."""
    justify: JustifyMethod = "right" if numeric else "left"
    table.add_column(name, justify=justify, no_wrap=numeric, max_width=widest, overflow="fold")


class _Console(Console):
    """Replaces control characters, which names may contain, with visible symbols."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def show(parts: Sequence[Printed], stream: TextIO | None = None) -> None:
    """Print tables and texts: plain unless the stream is a terminal, and never cut off.

    Args:
        stream: standard output if None.
    """
    stream = stream or sys.stdout
    console = _Console(file=stream, highlight=False, markup=False)
    wide = console.options.update(max_width=10_000)
    for number, part in enumerate(parts):
        if number:
            console.print()
        if not console.is_terminal:  # a file has no edge
            width = Measurement.get(console, wide, _with_whole_numbers(part)).maximum
            _Console(file=stream, highlight=False, markup=False, width=width).print(part)
            continue
        if isinstance(part, Table):
            title, part.title = part.title, None  # a table would cut a long path in it
            if title is not None:
                _print_text(Text(str(title), "bold"), console)
            least = Measurement.get(console, wide, _with_whole_numbers(part)).minimum
            if least <= console.width:
                console.print(part)
                continue
            part = _row_by_row(part, console.width)
        _print_text(part, console)


def _print_text(text: Text, console: Console) -> None:
    """Print a text in lines that end between words, even if one of these is longer than a line."""
    edge = min(WIDEST, console.width)
    if max(map(cell_len, text.plain.split()), default=0) <= edge:
        console.print(text, width=edge)
        return
    for line in text.split("\n"):
        console.print(hanging("", line.plain, edge), markup=False, soft_wrap=True)


def _with_whole_numbers(part: Printed) -> Printed:
    for column in part.columns if isinstance(part, Table) else ():
        if column.no_wrap:  # rich would reserve only the width of its longest word
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    return part


def _row_by_row(table: Table, width: int) -> Text:
    """A table that is too wide for a terminal: below each row's first cell, the others by name."""
    names = [str(column.header) for column in table.columns[1:]]
    longest = max(map(len, names))
    lines: list[str] = []
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        lines += [*[""] * bool(lines), str(first)]
        lines += [
            hanging(f"  {name:<{longest}}  ", str(cell), width)
            for name, cell in zip(names, others, strict=True)
            if str(cell)
        ]
    return Text("\n".join(lines))
