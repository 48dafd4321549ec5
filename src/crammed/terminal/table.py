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
    console = _Console(file=stream, highlight=False)
    wide = console.options.update(max_width=10_000)
    for number, part in enumerate(parts):
        for column in part.columns if isinstance(part, Table) else ():
            if column.no_wrap:  # rich would reserve only the width of its longest word
                column.min_width = max(
                    cell_len(str(cell)) for cell in (column.header, *column.cells)
                )
        least, most = Measurement.get(console, wide, part)
        # At a terminal's edge words may wrap, but numbers may not; a file has no edge.
        width = max(console.width, least) if console.is_terminal else most
        console = _Console(file=stream, highlight=False, width=width)
        if number:
            console.print()
        console.print(part)
