"""How loss falls over the budgets of a study: by FLOPs, and by size where arms are sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from crammed.quantity import quantity
from crammed.report.curves import Line, pattern, unit_text
from crammed.report.drawing import COLOURS, FAINT, as_svg, drawn, new_figure
from crammed.report.figures import plain
from crammed.study.findings.exchange import Cell
from crammed.study.findings.laws import laws_of
from crammed.study.findings.scaling import TypeFit, analyse, cells_of
from crammed.study.result import StudyResult


def scaling(study: StudyResult, lines: Mapping[str, Line]) -> dict[str, Any] | None:
    """Figures of a study on several budgets; None if fewer than two have finished.

    Args:
        lines: how each arm is drawn, by its name without a budget.

    Returns:
        ``{"flops", "sizes", "laws"}``: loss against FLOPs; loss against parameters, a curve for
        each type and budget (None unless arms are called ``TYPE.SIZE``); and the findings in
        sentences.
    """
    cells = cells_of(study)
    if len({cell.label for cell in cells}) < 2:
        return None
    sized, unit = all(cell.size for cell in cells), unit_text(study.main_measure())
    found = analyse(study)
    types = found[0] if found is not None else {}
    return {
        "flops": _flops_figure(cells, lines, types, unit),
        "sizes": _sizes_figure(cells, unit) if sized else None,
        "laws": laws_of(study, found),
    }


@drawn
def _flops_figure(
    cells: Sequence[Cell], lines: Mapping[str, Line], types: Mapping[str, TypeFit], unit: str
) -> str:
    """Loss against FLOPs, a line for each arm, and the laws through each type's best sizes."""
    figure, axes = _logarithmic("training FLOPs of a run", unit)
    for arm in dict.fromkeys(map(_arm, cells)):
        own = sorted((c for c in cells if _arm(c) == arm), key=lambda cell: cell.flops)
        colour, dashes = lines[arm]
        style = pattern(dashes)
        x, y = [cell.flops for cell in own], [cell.mean for cell in own]
        axes.plot(x, y, color=colour, linestyle=style, marker="o", markersize=4, linewidth=1.2)
        for cell in own:
            axes.plot([cell.flops] * 2, [min(cell.losses), max(cell.losses)], color=colour)
    for one in types.values():
        if one.law is not None:
            flops = [cell.flops for cell in one.best]
            x = np.geomspace(min(flops), max(flops), 60).tolist()
            axes.plot(x, [one.law(each) for each in x], color=FAINT, linewidth=3, alpha=0.5)
    return as_svg(figure)


@drawn
def _sizes_figure(cells: Sequence[Cell], unit: str) -> str:
    figure, axes = _logarithmic("parameters", unit)
    labels = list(dict.fromkeys(cell.label for cell in cells))
    types = list(dict.fromkeys(cell.type for cell in cells))
    for label, kind in ((label, kind) for label in labels for kind in types):
        own = [cell for cell in cells if (cell.label, cell.type) == (label, kind)]
        own.sort(key=lambda cell: cell.parameters)
        axes.plot(
            [cell.parameters for cell in own],
            [cell.mean for cell in own],
            color=COLOURS[labels.index(label) % len(COLOURS)],
            marker="osD^v"[types.index(kind) % 5],
            markersize=4,
            linewidth=1.2,
            label=plain(f"{kind}, {label}"),
        )
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return as_svg(figure)


def _logarithmic(title: str, unit: str) -> tuple[Figure, Axes]:
    figure, axes = new_figure(3.9)
    axes.set_xscale("log")
    axes.set_xlabel(f"{title} (log scale)")
    axes.set_ylabel(f"held-out loss, {unit}")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.xaxis.set_minor_formatter(lambda *_: "")
    return figure, axes


def _arm(cell: Cell) -> str:
    return f"{cell.type}.{cell.size}" if cell.size else cell.type
