"""Held-out loss during training by arm: the mean over seeds, and a band from least to greatest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.quantity import quantity
from crammed.report.drawing import COLOURS, INK, as_svg, drawn, new_figure
from crammed.runs.logs import heldout_losses, read_events, read_metrics
from crammed.study.result import RATES, Run, StudyResult, run_folder

AXES = ("tokens", "seconds")
DASHES = ("none", "6 3", "2 3")
"""Arms that share a colour differ by their dashes."""
FEWEST = 2
"""Measurements during training that a curve needs at least."""

Values = NDArray[np.float64]
Line = tuple[str, str]
"""A colour and dashes."""


@dataclass(frozen=True)
class RunCurve:
    """What one run measured during training, each [measurements].

    Attributes:
        seconds: charged so far.
        loss: on held-out text with 15 % masked, in the unit that the arms are compared in.
    """

    tokens: Values
    seconds: Values
    loss: Values


def read_curves(folder: Path, study: StudyResult) -> dict[str, list[RunCurve]]:
    """The curves of each arm whose runs still exist; runs that cannot be read have none."""
    curves, measure = {}, study.main_measure()
    for arm, entry in study.arms.items():
        runs = ((run_folder(folder, arm, int(n)), run) for n, run in entry.runs.items())
        if found := [
            curve for path, run in runs if (curve := _read(path, run, measure)) is not None
        ]:
            curves[arm] = found
    return curves


def _read(run: Path, result: Run, measure: str) -> RunCurve | None:
    """What a run measured during training, without its result, which was measured on more rows."""
    try:
        points = read_metrics(run, "t_charged_s")
        events = read_events(run, heldout=("update", "tokens", measure))
    except InputError:
        return None
    measured = heldout_losses(events, math.inf if result.updates is None else result.updates)
    if not points or len(measured) < FEWEST:
        return None
    updates, charged = zip(*((p["update"], p["t_charged_s"]) for p in points), strict=True)
    seconds = np.interp([each["update"] for each in measured], updates, charged)
    tokens, loss = (np.array([e[name] for e in measured]) for name in ("tokens", measure))
    return RunCurve(tokens.astype(float), seconds, loss)


def lines_of(arms: Sequence[str], baseline: str) -> dict[str, Line]:
    """The colour and dashes of each arm; the baseline is drawn in the colour of text."""
    others = [arm for arm in arms if arm != baseline]
    lines = {
        arm: (COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)])
        for n, arm in enumerate(others)
    }
    return {baseline: (INK, DASHES[0]), **lines}


@drawn
def curves_figure(
    curves: Mapping[str, Sequence[RunCurve]], lines: Mapping[str, Line], axis: str, measure: str
) -> str:
    """Loss against one of `AXES`, as SVG; `measure` is what arms are compared by."""
    figure, axes = new_figure(3.9)
    factor, unit = (1.0, "") if axis == "tokens" else _unit(curves)
    for arm, seeds in curves.items():
        colour, dashes = lines[arm]
        x, low, middle, high = _band([(getattr(s, axis) / factor, s.loss) for s in seeds])
        axes.plot(x, middle, color=colour, linestyle=pattern(dashes), linewidth=1.5)
        if len(seeds) > 1:
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel(f"held-out loss, {unit_text(measure)}")
    axes.set_xlabel("tokens read" if axis == "tokens" else f"charged time, {unit}")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value) if value else "0")
    return as_svg(figure)


def unit_text(measure: str) -> str:
    """The unit of a held-out loss: nats, or, where vocabularies may differ, bits per character."""
    return "nats per token" if measure == RATES[0] else "bits per character"


def pattern(dashes: str) -> Any:
    return "solid" if dashes == "none" else (0, [float(part) / 1.5 for part in dashes.split()])


def _unit(curves: Mapping[str, Sequence[RunCurve]]) -> tuple[float, str]:
    """A unit of time that suits the longest run, in seconds and by its name."""
    longest = max(curve.seconds[-1] for seeds in curves.values() for curve in seeds)
    sizes = ((3600.0, "hours"), (60.0, "minutes"))
    return next((size for size in sizes if longest >= 3 * size[0]), (1.0, "seconds"))


def _band(curves: Sequence[tuple[Values, Values]]) -> tuple[Values, Values, Values, Values]:
    """Places that all seeds have reached, and the least, mean and greatest loss there."""
    begin = max(x[0] for x, _ in curves)
    end = min(x[-1] for x, _ in curves)
    places = curves[0][0]
    inside = places[(places > begin) & (places < end)]
    places = np.unique([begin, *inside, max(begin, end)])
    losses = np.array([np.interp(places, x, loss) for x, loss in curves])
    return places, losses.min(0), losses.mean(0), losses.max(0)
