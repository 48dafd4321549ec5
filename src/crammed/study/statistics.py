"""Compares the arms of a study with its baseline: means, deviations, confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

RATES = ("loss@0.15", "loss@0.25")


def compare_arms(study: dict[str, Any], rates: Sequence[str] = RATES) -> list[dict[str, Any]]:
    """A row for every arm, the lowest held-out loss first.

    Args:
        study: what `run_study` returns.
        rates: the losses of a run to compare, the first to sort by.

    Returns:
        ``{"arm", "seeds", "tokens", "seconds", "loss@0.15", "loss@0.25"}`` for each arm. A loss is
        its ``mean`` and standard ``deviation``, its ``difference`` from the baseline, and the 95 %
        ``interval`` and two-sided ``p`` of this difference by Welch's t-test (Welch 1947). These
        are None for the baseline, and interval and p are None if an arm has one seed. If runs
        failed, ``failed`` is the first reason; if all did, there are no losses.
    """
    arms = {name: _losses(arm, rates) for name, arm in study["arms"].items()}
    base = arms[study["baseline"]]
    rows = []
    for name, losses in arms.items():
        runs = study["arms"][name]["runs"].values()
        failed = [run["failed"] for run in runs if "failed" in run]
        row: dict[str, Any] = {"arm": name, "seeds": len(losses[rates[0]])}
        if failed:
            row["failed"] = failed[0]
        if losses[rates[0]]:
            good = [run for run in runs if "failed" not in run]
            row["tokens"] = statistics.fmean(run["tokens"] for run in good)
            row["seconds"] = statistics.fmean(run["seconds"] for run in good)
            for rate in rates:
                row[rate] = _one(losses[rate], base[rate] if name != study["baseline"] else None)
        rows.append(row)
    return sorted(rows, key=lambda row: row.get(rates[0], {"mean": math.inf})["mean"])


def _losses(arm: dict[str, Any], rates: Sequence[str]) -> dict[str, list[float]]:
    runs = [run for run in arm["runs"].values() if "failed" not in run]
    return {rate: [run[rate] for run in runs] for rate in rates}


def _one(losses: list[float], base: list[float] | None) -> dict[str, Any]:
    """Mean and deviation of an arm's losses, and their difference from the baseline's."""
    values: dict[str, Any] = {
        "mean": statistics.fmean(losses),
        "deviation": statistics.stdev(losses) if len(losses) > 1 else None,
        "difference": None,
        "interval": None,
        "p": None,
    }
    if base:
        values["difference"] = values["mean"] - statistics.fmean(base)
    if base and min(len(losses), len(base)) > 1:
        from scipy.stats import ttest_ind

        test = ttest_ind(losses, base, equal_var=False)
        if math.isfinite(test.pvalue):  # it is not if neither has any spread
            between = test.confidence_interval()
            values["interval"] = [float(between.low), float(between.high)]
            values["p"] = float(test.pvalue)
    return values
