"""The report's figures as SVG text, drawn by matplotlib without its global state."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from crammed.budget import ACCOUNTS, format_seconds
from crammed.data.show import describe_dropped
from crammed.data.statistics import BINS_A_TOKEN
from crammed.quantity import quantity

Point = dict[str, Any]

INK, FAINT, LINE, PALE = "#1f2933", "#9aa5b1", "#e4e7eb", "#93b4f5"
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "crammed",
    "font.family": "sans-serif",
    "font.size": 9.5,
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
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_POINTS = 600
"""Longer series are thinned to this many points, so that the file does not grow with the run."""

REFERENCE_EXAFLOP = (
    # Geiping and Goldstein 2022, table 1 and section 2: the device's peak times the time.
    ("RTX 2080 Ti, 24 h (the paper)", 4.65),
    ("RTX A4000, 24 h (the paper)", 7.64),
    ("RTX A6000, 24 h (the paper)", 13.37),
    ("Izsak et al. 2021", 86.0),
    ("BERT", 680.0),
    ("RoBERTa-base", 11059.0),
)


def as_svg(figure: Figure) -> str:
    """The figure as SVG text, with its colours left to the page's style sheet."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    for colour, name in OF_THE_PAGE.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return text[text.index("<svg") :]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def plain(text: str) -> str:
    """Text that matplotlib does not parse as a formula."""
    return text.replace("$", r"\$")


def power_of_ten(value: float) -> str:
    """``0.01`` -> ``10⁻²``, as text: the formulas that matplotlib would write are slow to draw."""
    return "10" + f"{math.log10(value):.0f}".translate(SUPERSCRIPTS)


def _thinned(records: Sequence[Point]) -> list[Point]:
    step = max(1, math.ceil(len(records) / MOST_POINTS))
    return [*records[:-1:step], *records[-1:]]


def _budget_axis(axes: Axes) -> None:
    axes.set_xlim(0, 100)
    axes.set_xlabel("progress of the run")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f} %"))


def loss_figure(runs: Sequence[Point]) -> str:
    """Training and held-out loss over the budget; for a single run, also the unigram model's loss.

    Args:
        runs: each with ``label``, ``metrics`` and ``on_the_way`` (lists of records), ``unigram``,
            and its ``summary``, which has the held-out loss of the trained model.
    """
    with rc_context(STYLE):
        figure, axes = _figure(7.2, 3.6)
        alone = len(runs) == 1
        for run, colour in zip(runs, _cycle(len(runs)), strict=True):
            points = _thinned(run["metrics"])
            label = "training" if alone else plain(run["label"])
            u = [100 * p["u"] for p in points]
            line = 1.1 if alone else 1.6
            axes.plot(u, [p["loss"] for p in points], color=colour, linewidth=line, label=label)
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
        _budget_axis(axes)
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
        axes.plot(
            [100 * p["u"] for p in run["on_the_way"]],
            [p[f"loss@{rate}"] for p in run["on_the_way"]],
            markersize=3.5,
            linewidth=0.8,
            label=f"{name}, during training" if labelled else None,
            **shape,
        )
    axes.plot(
        [100 * min(1.0, summary["u"])],
        [summary["heldout"][f"loss@{rate}"]],
        markersize=7,
        linestyle="none",
        clip_on=False,
        zorder=4 if rate == 0.15 else 3,
        label=f"{name}, at the end" if labelled else None,
        **shape,
    )


def learning_rate_figure(metrics: Sequence[Point]) -> str:
    """Learning rate over the budget, with rows per update and mask rate if they change."""
    with rc_context(STYLE):
        points = _thinned(metrics)
        u = [100 * p["u"] for p in points]
        panels: list[tuple[str, list[float]]] = [("learning rate", [p["lr"] for p in points])]
        for key, label in (("batch_rows", "rows per update"), ("mask_rate", "mask rate")):
            if len({p[key] for p in points}) > 1:
                panels.append((label, [p[key] for p in points]))
        figure = Figure(figsize=(7.2, 1.3 + 1.1 * len(panels)))
        for number, (label, values) in enumerate(panels, 1):
            axes = figure.add_subplot(len(panels), 1, number)
            axes.plot(u, values, color=COLOURS[0], linewidth=1.6)
            axes.set_ylim(0, 1.08 * max(values))
            axes.set_ylabel(label)
            _budget_axis(axes)
            if number < len(panels):
                axes.set_xlabel("")
        return as_svg(figure)


def speed_figure(metrics: Sequence[Point]) -> str:
    """Tokens per second over the budget."""
    with rc_context(STYLE):
        figure, axes = _figure(7.2, 2.4)
        points = _thinned(metrics[1:] or metrics)  # the first is one cold update
        axes.plot(
            [100 * p["u"] for p in points],
            [p["tokens_per_s"] for p in points],
            color=COLOURS[2],
            linewidth=1.3,
        )
        axes.set_ylim(0, 1.15 * max(p["tokens_per_s"] for p in points))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        axes.set_ylabel("tokens per second")
        _budget_axis(axes)
        return as_svg(figure)


def ledger_figure(accounts: dict[str, float], charge: Sequence[str]) -> str:
    """Where the time went: a bar for each account, pale if it is not charged to the budget.

    Args:
        accounts: seconds by account.
        charge: names of the accounts that are charged.
    """
    with rc_context(STYLE):
        names = [name for name in ACCOUNTS if accounts.get(name, 0.0) > 0.0][::-1]
        figure, axes = _figure(7.2, 0.7 + 0.3 * len(names))
        for row, name in enumerate(names):
            charged = name in charge
            colour = COLOURS[0] if charged else FAINT
            axes.barh(row, accounts[name], color=colour, alpha=1.0 if charged else 0.5, height=0.62)
            words = format_seconds(accounts[name]) + ("" if charged else ", not charged")
            axes.annotate(
                words, (accounts[name], row), xytext=(4, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axes.set_xlim(0, 1.25 * max(accounts.values()) or 1.0)
        axes.set_xlabel("seconds")
        axes.grid(axis="y", visible=False)
        return as_svg(figure)


def scores_figure(tasks: Mapping[str, Any]) -> str | None:
    """Every task's seeds as dots, with median and interval; the untrained model below it.

    Returns:
        None if every task failed.
    """
    names = [name for name, entry in tasks.items() if "failed" not in entry]
    if not names:
        return None
    with rc_context(STYLE):
        figure, axes = _figure(7.2, 1.1 + 0.5 * len(names))
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
        axes.set_yticks(range(len(names)), [plain(name) for name in reversed(names)])
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel("percent")
        axes.plot([], [], "o", color=COLOURS[0], label="pretrained")
        axes.plot([], [], "o", color=FAINT, label="untrained")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        return as_svg(figure)


def blimp_figure(scores: Mapping[str, Any], published: Mapping[str, float]) -> str:
    """BLiMP next to published models, and by phenomenon."""
    with rc_context(STYLE):
        bars = [("this model", scores["blimp"], COLOURS[0])]
        bars += [(name, value, FAINT) for name, value in published.items()]
        phenomena = sorted(scores["phenomena"].items(), key=lambda item: -item[1])
        parts = [(name.replace("_", " "), value, PALE) for name, value in phenomena]
        places = [-row - (0.7 if row >= len(bars) else 0.0) for row in range(len(bars + parts))]
        figure, axes = _figure(7.2, 0.9 + 0.26 * len(places))
        for place, (_, value, colour) in zip(places, bars + parts, strict=True):
            axes.barh(place, value, color=colour, height=0.66)
            axes.annotate(
                f"{value:.1f}",
                (value, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.axvline(50, color=INK, linewidth=1.0, linestyle="--")
        axes.set_yticks(places, [plain(name) for name, _, _ in bars + parts])
        axes.set_xlim(0, 108)
        axes.set_xticks(range(0, 101, 25))
        axes.set_xlabel("percent of pairs correct; chance is 50")
        axes.grid(axis="y", visible=False)
        return as_svg(figure)


def compute_figure(used: float, ceiling: float | None) -> str:
    """The exaFLOP of this run, and its upper limit, next to those of well-known models, log scale.

    Args:
        used: exaFLOP of training.
        ceiling: exaFLOP at the device's peak; None if the peak is unknown.
    """
    with rc_context(STYLE):
        bars = [(name, value, FAINT) for name, value in REFERENCE_EXAFLOP]
        if ceiling:
            bars.insert(0, ("this run at the device's peak", ceiling, PALE))
        if used:  # a run whose budget was lost in a crash may end before its first update
            bars.insert(0, ("this run", used, COLOURS[0]))
        figure, axes = _figure(7.2, 0.8 + 0.3 * len(bars))
        for row, (_, value, colour) in enumerate(reversed(bars)):
            axes.barh(row, value, color=colour, height=0.62)
            axes.annotate(
                f"{value:,.3g}" if value < 1000 else f"{value:,.0f}",
                (value, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: power_of_ten(x)))
        axes.xaxis.set_minor_locator(NullLocator())
        lowest = min(value for _, value, _ in bars)
        axes.set_xlim(10 ** math.floor(math.log10(lowest) - 0.3), 1.2e5)
        axes.set_yticks(range(len(bars)), [name for name, _, _ in reversed(bars)])
        axes.set_xlabel("exaFLOP (log scale)")
        axes.grid(axis="y", visible=False)
        return as_svg(figure)


def drops_figure(steps: Sequence[Mapping[str, Any]]) -> str:
    """How many documents each cleaning step dropped: a bar for each step, the first on top."""
    with rc_context(STYLE):
        figure, axes = _figure(7.2, 0.8 + 0.3 * len(steps))
        for row, step in enumerate(reversed(steps)):
            axes.barh(row, step["dropped"], color=COLOURS[1], height=0.62)
            axes.annotate(
                describe_dropped(step),
                (step["dropped"], row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(range(len(steps)), [step["step"] for step in reversed(steps)])
        axes.set_xlim(0, 1.8 * max(1, *(step["dropped"] for step in steps)))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("documents dropped")
        axes.grid(axis="y", visible=False)
        return as_svg(figure)


def documents_figure(statistics: Mapping[str, Any]) -> str:
    """Histograms of documents: by length in tokens, and by tokens per character.

    Args:
        statistics: the histograms of `Statistics.summary`.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.8))
        left, right = figure.subplots(1, 2)
        ticks = _bars(left, statistics["document_tokens"], COLOURS[0])
        left.set_xticks(ticks, [_power_of_two(b) for b in ticks])
        left.set_xlabel("tokens in a document (1k is 1,024)")
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: quantity(y)))
    axes.grid(axis="x", visible=False)
    return range(bins.start, bins.stop + 1, 1 + len(bins) // 8)


def _power_of_two(exponent: int) -> str:
    """``13`` -> ``8k``."""
    thousands, rest = divmod(exponent, 10)
    return f"{1 << rest}{('', 'k', 'M', 'G')[thousands]}"


def _cycle(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
