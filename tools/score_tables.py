"""Tables of what encoders score on tasks, from the ``scores.json`` files that evaluations leave.

A record holds them as ``ARM-SEED.json``, one for each pretraining seed of an arm.
"""

from __future__ import annotations

import statistics

from scipy.stats import ttest_ind

import layout
from layout import row_of, table

Scores = dict[str, list[float]]
"""The score of each pretraining seed, by task."""


def _arms(record: str) -> tuple[dict[str, Scores], dict[str, Scores], dict[str, float]]:
    """Scores by arm, those of their untrained models, and those of TF-IDF with a linear model."""
    arms: dict[str, Scores] = {}
    untrained: dict[str, Scores] = {}
    linear: dict[str, float] = {}
    for file in sorted((layout.RECORDS / record).glob("*-[0-9].json")):
        name = file.stem.rpartition("-")[0]
        for suite in layout.found(file)["suites"].values():
            for task, one in suite["tasks"].items():
                arms.setdefault(name, {}).setdefault(task, []).append(one["median"])
                if (twin := (one.get("untrained") or {}).get("median")) is not None:
                    of_arm = untrained.setdefault(f"{name}, untrained", {})
                    of_arm.setdefault(task, []).append(twin)
                if one.get("linear") is not None:
                    linear[task] = one["linear"]
    return arms, untrained, linear


def scores_table(words: list[str]) -> str:
    """Mean scores of arms over pretraining seeds; with two arms, also what the first gains."""
    arms, untrained, linear = _arms(words[0])
    tasks = [*next(iter(arms.values()))]
    head = row_of("arm", *tasks)
    rows = [
        row_of(arm, *(_mean(scores[task]) for task in tasks))
        for arm, scores in (arms | untrained).items()
    ]
    if len(arms) == 2 and all(len(each) > 1 for arm in arms.values() for each in arm.values()):
        gains = row_of("difference, 95 % interval", *(_gain(arms, task) for task in tasks))
        rows.insert(len(arms), gains)
    rows.append(row_of("TF-IDF with a linear model", *(f"{linear[task]:.1f}" for task in tasks)))
    return table(head, rows)


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _gain(arms: dict[str, Scores], task: str) -> str:
    """What the first arm scores above the second, with Welch's interval over pretraining seeds."""
    one, other = (arm[task] for arm in arms.values())
    low, high = ttest_ind(one, other, equal_var=False).confidence_interval()
    difference = statistics.fmean(one) - statistics.fmean(other)
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"
