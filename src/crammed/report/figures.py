"""The report's figures as SVG text, drawn by matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from crammed.data.statistics import BINS_A_TOKEN
from crammed.quantity import quantity
from crammed.report.drawing import COLOURS, FAINT, INK, WIDTH, as_svg, drawn, new_figure

Point = dict[str, Any]

MOST_POINTS = 600
"""Longer series are thinned to this many points, so that the file does not grow with the run."""
FEW_POINTS = 20
"""Shorter series have a mark at each point."""


def plain(text: str) -> str:
    """Text that matplotlib does not parse as a formula, nor leaves out of a legend."""
    return re.sub(r"^_", "\u200b_", text.replace("$", r"\$"))


def thinned(records: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS` of the records, the last one among them."""
    step = max(1, math.ceil(len(records) / MOST_POINTS))
    return [*records[:-1:step], *records[-1:]]


def columns(records: Sequence[Point], key: str) -> tuple[list[float], list[float]]:
    """The progress of records in percent, and a value of each."""
    return [100 * each["u"] for each in records], [each[key] for each in records]


def budget_axis(axes: Axes) -> None:
    """Have the progress of a run as the horizontal axis."""
    axes.set_xlim(0, 100)
    axes.set_xlabel("progress of the run")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")


def norm_axis(axes: Axes) -> None:
    """Have a logarithmic vertical axis, with few round numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.yaxis.set_minor_locator(NullLocator())


@drawn
def loss_figure(runs: Sequence[Point]) -> str:
    """Training and held-out loss over the budget; for a single run, also the unigram model's loss.

    Args:
        runs: each with ``label``, ``metrics`` and ``on_the_way`` (lists of records), ``unigram``,
            and ``summary``, which has the held-out loss of the trained model.
    """
    figure, axes = new_figure(4.0)
    alone = len(runs) == 1
    for run, colour in zip(runs, cycle(COLOURS), strict=False):
        label, line = ("training", 1.1) if alone else (plain(run["label"]), 1.6)
        u, loss = columns(thinned(run["metrics"]), "loss")
        axes.plot(u, loss, color=colour, linewidth=line, label=label)
        for rate in (0.15, 0.25) if alone else (0.15,):
            _heldout_points(axes, run, rate, INK if alone else colour, labelled=alone)
    if alone:
        axes.axhline(runs[0]["unigram"], color=COLOURS[4], linewidth=1.2, linestyle="--")
        axes.annotate(
            "unigram model on the held-out text",
            (99, runs[0]["unigram"]),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=COLOURS[4],
        )
    budget_axis(axes)
    axes.set_ylabel("loss, nats per token")
    axes.legend(loc="upper right" if not alone else "best")
    return as_svg(figure)


def _heldout_points(axes: Axes, run: Point, rate: float, colour: str, *, labelled: bool) -> None:
    """Held-out losses during training as a line, and that of the trained model as a large mark."""
    name, summary = f"held-out, {100 * rate:.0f} % masked", run["summary"]
    shape: dict[str, Any] = {"color": colour, "marker": "o" if rate == 0.15 else "s"}
    if rate != 0.15:
        shape["markerfacecolor"] = "white"
    if run["on_the_way"]:
        u, losses = columns(run["on_the_way"], f"loss@{rate}")
        label = name if labelled else None
        axes.plot(u, losses, markersize=3.5, linewidth=0.8, label=label, **shape)
    axes.plot(
        [100 * min(1.0, summary.u)],
        [summary.heldout[f"loss@{rate}"]],
        markersize=7,
        linestyle="none",
        clip_on=False,
        zorder=4 if rate == 0.15 else 3,
        label=name if labelled and not run["on_the_way"] else None,
        **shape,
    )


@drawn
def progress_figure(metrics: Sequence[Point]) -> str:
    """Learning rate, gradient norm and speed over the budget, and what else changes."""
    panels = [("lr", "learning rate", metrics)]
    for key, label in (("batch_rows", "rows per update"), ("mask_rate", "mask rate")):
        if len({p[key] for p in metrics}) > 1:
            panels.append((key, label, metrics))
    if norms := [p for p in metrics if 0.0 < (p.get("grad_norm") or 0.0) < math.inf]:
        panels.append(("grad_norm", "gradient norm", norms))
    panels.append(("tokens_per_s", "tokens per second", metrics[1:] or metrics))  # 1 cold update
    figure = Figure(figsize=(WIDTH, 0.9 + 1.25 * len(panels)))
    for number, (key, label, records) in enumerate(panels, 1):
        axes = figure.add_subplot(len(panels), 1, number)
        u, values = columns(thinned(records), key)
        mark = "o" if len(u) < FEW_POINTS else None
        axes.plot(u, values, color=COLOURS[number - 1], marker=mark, markersize=4)
        axes.set_ylim(0, 1.1 * max(values) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(lambda y, _: quantity(y) if y >= 1 else f"{y:g}")
        axes.set_ylabel(label.replace(" per ", "\nper "))
        budget_axis(axes)
        if key == "grad_norm":  # which one bad update may raise a hundredfold
            norm_axis(axes)
            axes.set_ylim(min(values) / 1.5, max(values) * 1.5)
        if number < len(panels):
            axes.set_xlabel("")
    return as_svg(figure)


@drawn
def scores_figure(tasks: Mapping[str, Any]) -> str | None:
    """Every task's seeds as dots, with median and interval; the untrained model below it.

    A diamond is TF-IDF with a linear model. None if every task failed.
    """
    names = [name for name, entry in tasks.items() if "failed" not in entry]
    if not names:
        return None
    figure, axes = new_figure(1.1 + 0.5 * len(names))
    for row, name in enumerate(reversed(names)):
        untrained = tasks[name].get("untrained", {})
        for part, colour, place in (
            (tasks[name], COLOURS[0], row + 0.16),
            (untrained, FAINT, row - 0.16),
        ):
            if "seeds" not in part:  # the untrained model was left out, or has no score
                continue
            seeds, median = part["seeds"], part["median"]
            if part["interval"] is not None:
                axes.plot(part["interval"], [place] * 2, color=colour, alpha=0.45, lw=1.4)
            axes.plot(seeds, [place] * len(seeds), "o", color=colour, alpha=0.55, markersize=6)
            axes.plot([median] * 2, [place - 0.13, place + 0.13], color=colour, lw=3)
        if (linear := tasks[name].get("linear")) is not None:
            axes.plot([linear], [row], "D", color=COLOURS[1], markersize=5)
    axes.set_yticks(range(len(names)), [plain(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("percent")
    axes.plot([], [], "o", color=COLOURS[0], label="pretrained")
    axes.plot([], [], "o", color=FAINT, label="untrained")
    if any("linear" in tasks[name] for name in names):
        axes.plot([], [], "D", color=COLOURS[1], markersize=5, label="TF-IDF")
    figure.legend(loc="outside upper center", ncols=3, handlelength=1.0, columnspacing=1.2)
    return as_svg(figure)


@drawn
def documents_figure(statistics: Mapping[str, Any]) -> str:
    """Histograms of documents: by length in tokens, and by tokens per character.

    Args:
        statistics: the histograms of `Statistics.summary`.
    """
    figure = Figure(figsize=(WIDTH, 2.6))
    left, right = figure.subplots(1, 2)
    ticks = _bars(left, statistics["document_tokens"], COLOURS[0])
    left.set_xticks(ticks, [_power_of_two(b) for b in ticks])
    left.set_xlabel("tokens in a document")
    left.set_ylabel("documents")
    ticks = _bars(right, statistics["tokens_per_character"], COLOURS[5])
    right.set_xticks(ticks, [f"{b / BINS_A_TOKEN:g}" for b in ticks])
    right.set_xlabel("tokens per character")
    return as_svg(figure)


def _bars(axes: Axes, histogram: Sequence[int], colour: str) -> range:
    """Bars from the first to the last bin that is not empty; returns some of the bins' edges."""
    filled = [b for b, count in enumerate(histogram) if count]
    bins = range(filled[0], filled[-1] + 1)
    axes.bar(bins, [histogram[b] for b in bins], 0.92, align="edge", color=colour)
    axes.yaxis.set_major_formatter(lambda y, _: quantity(y))
    axes.grid(axis="x", visible=False)
    return range(bins.start, bins.stop + 1, 1 + len(bins) // 5)


def _power_of_two(exponent: int) -> str:
    thousands, rest = divmod(exponent, 10)
    return f"{1 << rest}{('', 'k', 'M', 'G')[thousands]}"
