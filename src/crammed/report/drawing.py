"""How figures become SVG text: always in our own style, and never at the price of the page."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast
from warnings import catch_warnings, simplefilter

import matplotlib
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crammed.errors import in_one_line
from crammed.terminal.progress import Progress

Arguments = ParamSpec("Arguments")
Text = TypeVar("Text", bound=str | None)

INK, FAINT, LINE, PALE = "#1f2933", "#9aa5b1", "#e4e7eb", "#93b4f5"
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")
WIDTH, PHONE_WIDTH = 5.6, 3.6
"""Inches of a figure, and of its version for a phone, of the same height."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
OF_THE_PAGE = {
    **{INK: "ink", FAINT: "faint", LINE: "line", PALE: "pale", "#ffffff": "paper"},
    **{colour: f"c{number}" for number, colour in enumerate(COLOURS)},
}
"""Names of the page's own colours, which its dark mode changes."""


def drawn(draw: Callable[Arguments, Text]) -> Callable[Arguments, Text]:
    """Have a function draw in our style, whatever the user's settings of matplotlib are.

    If it fails, for whatever reason, a paragraph that says so takes the place of the figure, and
    so does a line for the user: the rest of the page is worth more than one figure.
    """

    @wraps(draw)
    def drawing(*arguments: Arguments.args, **named: Arguments.kwargs) -> Text:
        try:
            with _our_style():
                return draw(*arguments, **named)
        except Exception as error:
            reason = in_one_line(error)
            _say(reason)
            words = html.escape(f"This figure could not be drawn: {reason}")
            return cast(Text, f'<p class="soft">{words}</p>')

    return drawing


@contextmanager
def _our_style() -> Iterator[None]:
    """The library's defaults and `STYLE`, in place of what a matplotlibrc says."""
    with rc_context(), catch_warnings():
        simplefilter("ignore")  # of names that the library will drop, and of letters it lacks
        own = dict(matplotlib.rcParamsDefault)
        # Backends are for windows, which we have none of.
        matplotlib.rcParams.update({k: own[k] for k in own if not k.startswith("backend")})
        matplotlib.rcParams.update(STYLE)
        yield


@cache
def _say(reason: str) -> None:
    Progress(sys.stderr).line(f"report  without some figures, which could not be drawn: {reason}")


def new_figure(height: float) -> tuple[Figure, Axes]:
    """A figure so many inches high, and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def as_svg(figure: Figure) -> str:
    """The figure as SVG text in two widths; the page shows the one whose text is readable there."""
    wide = _svg(figure, "wide")
    figure.set_figwidth(PHONE_WIDTH)
    return wide + _svg(figure, "narrow")


def _svg(figure: Figure, name: str) -> str:
    """SVG text in an element of class `name`, with its colours left to the page's style sheet."""
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name}):  # what one width refers to is not in the other
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    for colour, of_page in OF_THE_PAGE.items():
        text = text.replace(f": {colour}", f": var(--{of_page})")
    return f'<div class="{name}">{text[text.index("<svg") :]}</div>'
