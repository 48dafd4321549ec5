"""Builds scores as JSON: a task's score with its seeds, interval and untrained model; and means."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from crammed.evaluation.scores.bootstrap import (
    interval,
    interval_over,
    mean_measure,
    resampled_medians,
)
from crammed.evaluation.scores.metrics import Floats, measure
from crammed.evaluation.scores.predictions import Outputs
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import OF_ONE, Metric, Suite, Task

Json = dict[str, Any]


def score_json(
    task: Task,
    name: str,
    outputs: Sequence[Outputs],
    untrained: Sequence[Outputs],
    data: TaskData,
    cut: Mapping[str, int],
) -> tuple[Json, Floats | None]:
    """One score of a task, and its resampled medians, which `suite_means` needs.

    Args:
        name: of the score, a key of `data.scored`.
        outputs: each seed's outputs for the scored rows.
        untrained: the untrained model's outputs; empty if it was left out.
        cut: how many sequences were truncated, by split.

    Returns:
        ``{"metric", "seeds", "median", "spread", "interval", "also", "rows", "official", "cut"}``
        in percent, with ``kind`` unless that is classification, ``official_rows`` if they differ
        from ``rows``, ``untrained`` unless it was left out (``{"failed": reason}`` if that score is
        undefined), with it ``gain``, the interval of the difference, ``skipped`` if rows of a split
        have no text, and the keys of `interval_over`. If the score itself is undefined: what
        `failed_json` returns, and None.
    """
    rows, metrics = data.scored[name], metrics_of(task, name)
    try:
        score = _seeds(metrics, outputs, rows, data.labels)
    except ValueError as error:
        return failed_json(task, name, str(error)), None
    floor: Json | None = None
    if untrained:
        try:
            floor = _seeds(metrics, untrained, rows, data.labels)
        except ValueError as error:
            floor = {"failed": str(error)}
    models = [outputs] if floor is None or "failed" in floor else [outputs, untrained]
    medians = resampled_medians(
        metrics, models, rows, data.labels, f"{task.name}/{name}", task.name
    )
    score["interval"] = interval(medians[0])
    if floor is not None:
        score["untrained"] = floor
        if len(medians) == 2:
            floor["interval"] = interval(medians[1])
            score["gain"] = interval(medians[0] - medians[1])
    result = {
        "metric": metric_words(task, name, data.labels),
        **({} if task.kind == "classification" else {"kind": task.kind}),
        **score,
        "also": _also(task, name, outputs, data),
    }
    return {**result, **_provenance(task, name, data), "cut": dict(cut)}, medians[0]


def failed_json(task: Task, name: str, reason: str) -> Json:
    return {"metric": metric_words(task, name, task.labels), "failed": reason}


def metrics_of(task: Task, name: str) -> tuple[Metric, ...]:
    """The metrics whose mean is this score of the task."""
    return task.numbers[name].metric or task.metric


def metric_words(task: Task, name: str, labels: Sequence[str]) -> str:
    """The metrics of a score in words.

    Args:
        labels: names of the classes; none if they are not known.
    """
    return " and ".join(_worded(task, metric, labels) for metric in metrics_of(task, name))


def _worded(task: Task, metric: Metric, labels: Sequence[str]) -> str:
    """``f1 of spam``; ``f1`` where the positive class is 1 and the other 0, as is usual."""
    positive = positive_of(task, labels) if metric in OF_ONE else None
    return metric if positive is None else f"{metric} of {positive}"


def positive_of(task: Task, labels: Sequence[str]) -> str | None:
    """Name of the class whose F1 is measured; None if it is as usual, or no label is known."""
    name = task.positive or (labels[1] if len(labels) == 2 else None)
    return None if (*labels, name) == ("0", "1", "1") else name


def _seeds(
    metrics: Sequence[Metric], outputs: Sequence[Outputs], rows: Rows, labels: Sequence[str]
) -> Json:
    seeds = []
    for seed, each in enumerate(outputs, 1):
        try:
            seeds.append(mean_measure(metrics, each, rows, labels))
        except ValueError as error:
            raise ValueError(f"seed {seed}: {error}") from error
    return {
        "seeds": seeds,
        "median": statistics.median(seeds),
        "spread": max(seeds) - min(seeds),
        **interval_over(len(seeds)),
    }


def _also(task: Task, name: str, outputs: Sequence[Outputs], data: TaskData) -> Json:
    """Medians of the parts of a score and of what is reported next to it; None if undefined."""
    metrics = metrics_of(task, name)
    shown = list(metrics) if len(metrics) > 1 else []
    if task.numbers[name].metric is None:
        shown += task.also
    also: Json = {}
    for metric in shown:
        words = _worded(task, metric, data.labels)
        try:
            values = [measure(metric, each, data.scored[name], data.labels) for each in outputs]
            also[words] = statistics.median(values)
        except ValueError:
            also[words] = None
    return also


def _provenance(task: Task, name: str, data: TaskData) -> Json:
    """How many rows the two splits behind a score have, should have, and lack for want of text."""
    splits = {task.train: data.train, task.numbers[name].key: data.scored[name]}
    rows = {split: len(each) for split, each in splits.items()}
    official = {split: task.rows[split] for split in rows if split in task.rows}
    found: Json = {
        "rows": rows,
        "official": None if len(official) < len(rows) else official == rows,
    }
    if found["official"] is False:
        found["official_rows"] = official
    if task.folds:
        found["folds"] = task.folds
    if skipped := {split: each.skipped for split, each in splits.items() if each.skipped}:
        found["skipped"] = skipped
    return found


def suite_means(
    suite: Suite, tasks: Mapping[str, Json], resampled: Mapping[str, Floats]
) -> list[Json]:
    """The suite's means over the scores that exist.

    Args:
        tasks: each score as JSON, by name.
        resampled: each score's resampled medians, by name. A mean over a score without them has no
            interval.

    Returns:
        for each mean ``{"name", "of", "value", "interval", "partial"}`` and the keys of
        `interval_over`, with ``untrained`` and ``linear`` if every score has one, and ``failed``
        (names) if scores that failed are missing from it.
    """
    there = {name for name, score in tasks.items() if "failed" not in score}
    return [
        _mean(name, of, tasks, resampled, sorted(set(missing) & tasks.keys()))
        for name, of, missing in means_over(suite, there)
    ]


def means_over(
    suite: Suite, there: Collection[str]
) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(name, scores, missing scores) of the means that can be taken over the scores `there`.

    A mean of the suite is taken only if all of its scores exist. If the first mean is incomplete,
    those of its scores that exist form a mean named after them.
    """
    means: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        (name, of, ()) for name, of in suite.means.items() if set(of) <= set(there)
    ]
    first = next(iter(suite.means.values()), ())
    some = tuple(name for name in first if name in there)
    if 1 < len(some) < len(first) and all(set(of) != set(some) for _, of, _ in means):
        missing = tuple(name for name in first if name not in there)
        means.insert(0, (f"mean of {', '.join(some)}", some, missing))
    return means


def _mean(
    name: str,
    of: Sequence[str],
    tasks: Mapping[str, Json],
    resampled: Mapping[str, Floats],
    failed: Sequence[str],
) -> Json:
    whole = all(each in resampled for each in of)
    mean: Json = {
        "name": name,
        "of": list(of),
        "value": statistics.fmean(tasks[each]["median"] for each in of),
        "interval": interval(np.mean([resampled[n] for n in of], axis=0)) if whole else None,
        "partial": any(tasks[each]["official"] is False for each in of),
    }
    mean |= interval_over(min(len(tasks[each]["seeds"]) for each in of))
    floors = {
        "untrained": [tasks[each].get("untrained", {}).get("median") for each in of],
        "linear": [tasks[each].get("linear") for each in of],
    }
    for kind, values in floors.items():
        if None not in values:
            mean[kind] = statistics.fmean(values)
    return {**mean, "failed": list(failed)} if failed else mean
