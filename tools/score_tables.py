"""Tables of what encoders score on tasks, from the ``scores.json`` files that evaluations leave.

A record holds them as ``ARM-SEED.json``, one for each pretraining seed of an arm.
"""

from __future__ import annotations

import statistics

from scipy.stats import ttest_ind

import layout
from layout import row_of, rule

Scores = dict[str, list[float]]
"""The score of each pretraining seed, by task."""


def _arms(record: str) -> tuple[dict[str, Scores], dict[str, float], set[float]]:
    """Scores by arm, those of TF-IDF with a linear model by task, and how many seeds each has."""
    arms: dict[str, Scores] = {}
    linear: dict[str, float] = {}
    for file in sorted((layout.RECORDS / record).glob("*-[0-9].json")):
        arm = arms.setdefault(file.stem.rpartition("-")[0], {})
        (suite,) = layout.found(file)["suites"].values()
        for task, one in suite["tasks"].items():
            arm.setdefault(task, []).append(one["median"])
            if one.get("linear") is not None:
                linear[task] = one["linear"]
    return arms, linear, {len(each) for arm in arms.values() for each in arm.values()}


def scores_table(words: list[str]) -> str:
    """Mean scores of arms over pretraining seeds; with two arms, also what the first gains."""
    arms, linear, seeds = _arms(words[0])
    tasks = [*next(iter(arms.values()))]
    head = row_of("arm", *tasks)
    rows = [row_of(arm, *(_mean(scores[task]) for task in tasks)) for arm, scores in arms.items()]
    if len(arms) == 2 and min(seeds) > 1:
        rows.append(row_of("difference, 95 % interval", *(_gain(arms, task) for task in tasks)))
    rows.append(row_of("TF-IDF with a linear model", *(f"{linear[task]:.1f}" for task in tasks)))
    return "\n".join([head, rule(head), *rows]) + "\n"


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _gain(arms: dict[str, Scores], task: str) -> str:
    """What the first arm scores above the second, with Welch's interval over pretraining seeds."""
    one, other = (arm[task] for arm in arms.values())
    low, high = ttest_ind(one, other, equal_var=False).confidence_interval()
    difference = statistics.fmean(one) - statistics.fmean(other)
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"
