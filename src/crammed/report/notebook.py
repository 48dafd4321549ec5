"""Results as a notebook shows them: tables, and the figure of a run's losses."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from crammed.report.drawing import OF_THE_PAGE
from crammed.report.figures import loss_figure
from crammed.report.page import losses_of


def table_html(lines: Sequence[tuple[str, str | Sequence[str]]]) -> str:
    """Labelled lines as a table."""
    rows = []
    for label, text in lines:
        words = "<br>".join(map(html.escape, [text] if isinstance(text, str) else text))
        name = html.escape(label)
        style = 'style="text-align: left; vertical-align: top"'
        rows.append(f"<tr><th {style}>{name}</th><td {style}>{words}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def curve_html(run: Path) -> str:
    """The losses of a finished run as SVG, in the report's light colours on white."""
    colours = "; ".join(f"--{name}: {colour}" for colour, name in OF_THE_PAGE.items())
    style = f"{colours}; background: #fff; max-width: 640px"
    return (
        "<style>.crammed .narrow { display: none }</style>"
        f'<div class="crammed" style="{style}">{loss_figure([losses_of(run)])}</div>'
    )
