"""Tables of what encoders score on tasks, of encoders trained further, and of ways to an encoder.

A record holds the ``scores.json`` that evaluations leave as ``ARM-SEED.json``, one for each
pretraining seed of an arm; the ``summary.json`` of runs of `crammed adapt`, and what
`benchmarks/run_mlm.py` printed, as ``GROUP-NAME.json``; and what `crammed decide --json` printed
as ``decision-NAME.json``.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import combinations
from typing import Any

from scipy.stats import spearmanr

import layout
from crammed.evaluation.decision import cell, ways_in
from layout import findable, row_of, table, welch

Scores = dict[str, list[float]]
"""The score of each pretraining seed, by task."""
MOST_COLUMNS = 5
"""Tasks that fit side by side; more become rows."""


def _arms(record: str) -> tuple[dict[str, Scores], dict[str, Scores], dict[str, float]]:
    """Scores by arm, those of their untrained models, and those of TF-IDF with a linear model."""
    arms: dict[str, Scores] = {}
    untrained: dict[str, Scores] = {}
    linear: dict[str, float] = {}
    for file in sorted((layout.RECORDS / record).glob("*-*.json")):
        name, _, seed = file.stem.rpartition("-")
        if not seed.isdecimal():
            continue
        suites = layout.found(file)["suites"].values()
        tasks = [task for suite in suites for task in suite["tasks"]]
        if double := {task for task in tasks if tasks.count(task) > 1}:
            raise SystemExit(f"{file}: two suites score {min(double)}: keep one in the record")
        for suite in suites:
            for task, one in suite["tasks"].items():
                if "failed" in one:
                    raise SystemExit(f"{file}: {task} failed: {one['failed']}")
                _add(arms, name, task, one["median"])
                if (twin := (one.get("untrained") or {}).get("median")) is not None:
                    _add(untrained, f"{name}, untrained", task, twin)
                if one.get("linear") is not None:
                    linear[task] = one["linear"]
            for mean in suite["means"]:
                if not mean["name"].startswith("mean of"):  # of some tasks only
                    whole = f"mean of {mean['name']}"
                    _add(arms, name, whole, mean["value"])
                    if "linear" in mean:
                        linear[whole] = mean["linear"]
                    if "untrained" in mean:
                        _add(untrained, f"{name}, untrained", whole, mean["untrained"])
    return arms, untrained, linear


def _add(arms: dict[str, Scores], arm: str, task: str, score: float) -> None:
    arms.setdefault(arm, {}).setdefault(task, []).append(score)


def scores_table(record: str) -> str:
    """Mean scores of arms over pretraining seeds; with two arms, also what the first gains."""
    arms, untrained, linear = _arms(record)
    if not arms:
        raise SystemExit(f"{layout.RECORDS / record} has no file ARM-SEED.json: add the scores")
    tasks = [*dict.fromkeys(task for scores in arms.values() for task in scores)]
    lines = [("arm", *tasks)]
    lines += [
        (arm, *(_mean(scores.get(task, [])) for task in tasks))
        for arm, scores in (arms | untrained).items()
    ]
    if len(arms) == 2 and all(len(a.get(t, [])) > 1 for a in arms.values() for t in tasks):
        pairs = [[arm[task] for arm in arms.values()] for task in tasks]
        gains = ("difference, 95 % interval", *(_gain(*pair) for pair in pairs))
        found = ("found in 80 %", *(f"{findable(*pair):.1f}" for pair in pairs))
        lines[1 + len(arms) : 1 + len(arms)] = [gains, found]
    floor = [[linear[task]] if task in linear else [] for task in tasks]
    lines.append(("TF-IDF with a linear model", *map(_mean, floor)))
    if len(tasks) > MOST_COLUMNS:
        lines = [("task", *lines[0][1:]), *lines[1:]]
        lines = list(zip(*lines, strict=True))
    head, *rows = (row_of(*line) for line in lines)
    return table(head, rows)


def agreement_table(record: str) -> str:
    """How far pairs of tasks rank a record's encoders alike: Spearman's correlation."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for scores in _arms(record)[0].values():
        for task, each in scores.items():
            by_task[task] += each
    rows = [
        row_of(f"{a} and {b}", f"{len(by_task[a])}", f"{spearmanr(by_task[a], by_task[b])[0]:.2f}")
        for a, b in combinations(by_task, 2)
    ]
    return table(row_of("tasks", "encoders", "rank correlation"), rows)


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _gain(first: list[float], second: list[float]) -> str:
    difference, low, high = welch(first, second)
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"


def adapted_table(record: str, group: str) -> str:
    """The adaptations of a group in a record, the one with the lowest held-out loss first."""
    files = (layout.RECORDS / record).glob(f"{group}-*.json")
    found = {file.stem.removeprefix(f"{group}-"): layout.found(file) for file in files}
    head = row_of(group, "updates", "tokens", "held-out loss", "memory")
    rows = [
        row_of(
            *(name, f"{one['updates']:,}", f"{one['tokens']:,}"),
            *(f"{one['heldout']['loss@0.15']:.3f}", f"{one['memory_bytes'] / 1e6:,.0f} MB"),
        )
        for name, one in sorted(found.items(), key=lambda item: item[1]["heldout"]["loss@0.15"])
    ]
    return table(head, rows)


def decisions_table(record: str) -> str:
    """The scores of every way to an encoder, by text and task; the best of a row is bold."""
    rows, ways = [], []
    for file in sorted((layout.RECORDS / record).glob("decision-*.json")):
        scores = layout.found(file)["scores"]
        ways = ways_in(scores)
        text = file.stem.removeprefix("decision-").replace("-", " ")
        rows += [
            row_of(text, name, *(_shown(each, way) for way in ways))
            for name, each in scores.items()
        ]
    return table(row_of("text", "task", *ways), rows)


def _shown(score: dict[str, Any], way: str) -> str:
    return f"**{cell(score, way)}**" if way == score["best"] else cell(score, way)
