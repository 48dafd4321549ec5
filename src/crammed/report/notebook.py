"""The losses of a run as a notebook shows them."""

from __future__ import annotations

from pathlib import Path

from crammed.report.drawing import OF_THE_PAGE
from crammed.report.figures import loss_figure
from crammed.report.page import losses_of


def curve_html(run: Path) -> str:
    """The losses of a finished run as SVG, in the report's light colours on white."""
    colours = "; ".join(f"--{name}: {colour}" for colour, name in OF_THE_PAGE.items())
    style = f"{colours}; background: #fff; max-width: 640px"
    return (
        "<style>.crammed .narrow { display: none }</style>"
        f'<div class="crammed" style="{style}">{loss_figure([losses_of(run)])}</div>'
    )
