"""Scores as JSON: a number with its seeds, interval and untrained twin; means over numbers."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from crammed.evaluation.scores.bootstrap import interval, mean_measure, resampled_medians
from crammed.evaluation.scores.metrics import Outputs, measure
from crammed.evaluation.scores.resampled_metrics import Floats
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import Metric, Suite, Task

Json = dict[str, Any]


def score_json(
    task: Task,
    number: str,
    outputs: Sequence[Outputs],
    untrained: Sequence[Outputs],
    data: TaskData,
    cut: Mapping[str, int],
) -> tuple[Json, Floats | None]:
    """One number of a task, and its resampled medians, which `suite_means` asks for.

    Args:
        number: its name among `data.scored`.
        outputs: what each seed gives on the rows of this number, see `metrics.measure`.
        untrained: the same of the untrained twin; empty without one.
        cut: how many sequences lost their end, by split.

    Returns:
        ``{"metric", "seeds", "median", "spread", "interval", "also", "rows", "official", "cut"}``
        in percent, with ``official_rows`` where they differ and ``untrained`` where there is a
        twin (``{"failed": reason}`` if its score is undefined); or what `failed_json` gives, and
        None, if the score is undefined.
    """
    rows, metrics = data.scored[number], metrics_of(task, number)
    try:
        score = _seeds(metrics, outputs, rows, data.labels)
    except ValueError as error:
        return failed_json(task, number, str(error)), None
    twin: Json | None = None
    if untrained:
        try:
            twin = _seeds(metrics, untrained, rows, data.labels)
        except ValueError as error:
            twin = {"failed": str(error)}
    models = [outputs] if twin is None or "failed" in twin else [outputs, untrained]
    name = f"{task.name}/{number}"
    medians = resampled_medians(metrics, models, rows, data.labels, name, task.name)
    score["interval"] = interval(medians[0])
    if twin is not None:
        score["untrained"] = twin
        if len(medians) == 2:
            twin["interval"] = interval(medians[1])
    result = {"metric": _name(metrics), **score, "also": _also(task, number, outputs, data)}
    return {**result, **_provenance(task, number, data), "cut": dict(cut)}, medians[0]


def failed_json(task: Task, number: str, reason: str) -> Json:
    """What stands in place of a number that could not be had."""
    return {"metric": _name(metrics_of(task, number)), "failed": reason}


def metrics_of(task: Task, number: str) -> tuple[Metric, ...]:
    """The metrics whose mean the number is."""
    return task.numbers[number].metric or task.metric


def _name(metrics: Sequence[Metric]) -> str:
    return " and ".join(metrics)


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
    }


def _also(task: Task, number: str, outputs: Sequence[Outputs], data: TaskData) -> Json:
    """Medians of the parts of the score, and of what is reported beside it; None if undefined."""
    metrics = metrics_of(task, number)
    names = list(metrics) if len(metrics) > 1 else []
    if task.numbers[number].metric is None:
        names += task.also
    also: Json = {}
    for metric in names:
        try:
            values = [measure(metric, each, data.scored[number], data.labels) for each in outputs]
            also[metric] = statistics.median(values)
        except ValueError:
            also[metric] = None
    return also


def _provenance(task: Task, number: str, data: TaskData) -> Json:
    """Rows read and official ones of the two splits that a number rests on."""
    scored = task.numbers[number].key
    rows = {task.train: len(data.train), scored: len(data.scored[number])}
    official = {split: task.rows[split] for split in rows if split in task.rows}
    if len(official) < len(rows):
        return {"rows": rows, "official": None}
    if official == rows:
        return {"rows": rows, "official": True}
    return {"rows": rows, "official": False, "official_rows": official}


def suite_means(
    suite: Suite, tasks: Mapping[str, Json], resampled: Mapping[str, Floats]
) -> list[Json]:
    """The suite's means over the numbers that are there.

    Args:
        tasks: number -> its score JSON.
        resampled: number -> its resampled medians; a mean over one that is not there has no
            interval.

    Returns:
        for each mean ``{"name", "of", "value", "interval", "partial"}``, with ``untrained`` where
        all have a twin, and ``failed`` (names) if it is not the whole mean because numbers failed.
    """
    there = {name for name, score in tasks.items() if "failed" not in score}
    return [
        _mean(name, of, tasks, resampled, sorted(set(missing) & tasks.keys()))
        for name, of, missing in means_over(suite, there)
    ]


def means_over(
    suite: Suite, there: Collection[str]
) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(name, numbers, numbers that it lacks) of the means that can be taken.

    A mean that is all there goes by its name. If the first is not, what is there of it makes one
    that is named by its numbers.
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
    twins = [tasks[each].get("untrained", {}).get("median") for each in of]
    if None not in twins:
        mean["untrained"] = statistics.fmean(twins)
    return {**mean, "failed": list(failed)} if failed else mean
