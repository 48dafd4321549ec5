"""The report's bars, which the page draws itself: labels and numbers stay text of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from crammed.budget import ACCOUNTS, Account, format_seconds
from crammed.data.show import describe_dropped

REFERENCE_EXAFLOP = (
    # Geiping and Goldstein 2022, table 1 and section 2: the device's peak times the time.
    ("RTX 2080 Ti, 24 h (the paper)", 4.65),
    ("RTX A4000, 24 h (the paper)", 7.64),
    ("RTX A6000, 24 h (the paper)", 13.37),
    ("Izsak et al. 2021", 86.0),
    ("BERT", 680.0),
    ("RoBERTa-base", 11059.0),
)


class Bar(NamedTuple):
    """A line of a figure.

    Attributes:
        percent: length of the bar, of the width there is.
        kind: class of the style sheet: ``own``, ``part``, or empty for what it is compared with.
    """

    name: str
    text: str
    percent: float
    kind: str = ""


def ledger_bars(accounts: Mapping[Account, float], charge: Sequence[str]) -> list[Bar]:
    """Where the time went: seconds by account; those that are charged to the budget stand out."""
    most = max(accounts.values()) or 1.0
    return [
        Bar(
            name.replace("_", " "),
            format_seconds(accounts[name]) + ("" if name in charge else ", not charged"),
            100 * accounts[name] / most,
            "own" if name in charge else "",
        )
        for name in ACCOUNTS
        if accounts.get(name, 0.0) > 0.0
    ]


def blimp_bars(scores: Mapping[str, Any], published: Mapping[str, float]) -> list[Bar]:
    """BLiMP next to published models, and by phenomenon."""
    phenomena = sorted(scores["phenomena"].items(), key=lambda item: -item[1])
    values = [("this model", scores["blimp"], "own"), *((*each, "") for each in published.items())]
    values += [(name.replace("_", " "), value, "part") for name, value in phenomena]
    return [Bar(name, f"{value:.1f}", value, kind) for name, value, kind in values]


def compute_bars(used: float, ceiling: float | None) -> list[Bar]:
    """The exaFLOP of this run, and its upper limit, next to those of well-known models, log scale.

    Args:
        used: exaFLOP of training.
        ceiling: exaFLOP at the device's peak; None if the peak is unknown.
    """
    values = [(name, value, "") for name, value in REFERENCE_EXAFLOP]
    if ceiling:
        values.insert(0, ("this run at the device's peak", ceiling, "part"))
    if used:  # a run whose budget was lost in a crash may end before its first update
        values.insert(0, ("this run", used, "own"))
    low, high = (math.log10(each(value for _, value, _ in values)) for each in (min, max))
    return [
        Bar(
            name,
            f"{value:,.3g}" if value < 1000 else f"{value:,.0f}",
            2.0 + 98.0 * (math.log10(value) - low) / (high - low),
            kind,
        )
        for name, value, kind in values
    ]


def drops_bars(steps: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """How many documents each cleaning step dropped."""
    most = max(1, *(step["dropped"] for step in steps))
    return [
        Bar(step["step"], describe_dropped(step), 100 * step["dropped"] / most, "part")
        for step in steps
    ]
