"""Confidence intervals of scores: a bootstrap over rows and seeds (Efron and Tibshirani 1993)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from crammed.evaluation.scores.metrics import Floats, measure, units_of, weighted_metric
from crammed.evaluation.scores.predictions import Outputs
from crammed.keys import key
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric

RESAMPLES = 1000
_MOST_WEIGHTS = 4_000_000
"""Weights held in memory at once; 32 MB."""


def mean_measure(
    metrics: Sequence[Metric], outputs: Outputs, rows: Rows, labels: Sequence[str]
) -> float:
    """The mean of the metrics, which is the score of one seed, in percent.

    Raises:
        ValueError: one of the metrics is undefined, see `measure`.
    """
    return float(np.mean([measure(metric, outputs, rows, labels) for metric in metrics]))


def resampled_medians(
    metrics: Sequence[Metric],
    models: Sequence[Sequence[Outputs]],
    rows: Rows,
    labels: Sequence[str],
    name: str,
    task: str,
) -> list[Floats]:
    """Each model's median over seeds in every resample, [RESAMPLES]; NaN where undefined.

    Within a resample, all models and seeds use the same rows; seeds are drawn separately for each
    model.

    Args:
        models: for each model, the outputs of every seed.
        name: the score's name; rows are drawn independently for different names.
        task: the task that the score belongs to. All scores of a task come from the same
            fine-tuned models, so each resample uses the same seeds for all of them.
    """
    functions = [
        [[weighted_metric(metric, each, rows, labels) for metric in metrics] for each in outputs]
        for outputs in models
    ]
    values: list[list[Floats]] = [[] for _ in models]
    units = int(units_of(rows).max()) + 1
    for weights in _weights(units, np.random.default_rng(key(0, f"bootstrap/{name}/rows"))):
        for parts, seeds in zip(values, functions, strict=True):
            scores = [np.mean([one(weights) for one in each], axis=0) for each in seeds]
            parts.append(np.stack(scores, 1))
    draw = np.random.default_rng(key(0, f"bootstrap/{task}/seeds"))
    medians = []
    for parts in values:
        table = np.concatenate(parts)  # [RESAMPLES, seeds]
        chosen = draw.integers(table.shape[1], size=table.shape)
        medians.append(np.median(np.take_along_axis(table, chosen, 1), axis=1))
    return medians


def _weights(units: int, draw: np.random.Generator) -> Iterator[Floats]:
    """How often each resample drew each unit, [resamples, units], in chunks of resamples."""
    step = max(1, _MOST_WEIGHTS // units)
    for start in range(0, RESAMPLES, step):
        count = min(step, RESAMPLES - start)
        picked = draw.integers(units, size=(count, units)) + units * np.arange(count)[:, None]
        flat = np.bincount(picked.ravel(), minlength=count * units)
        yield flat.reshape(count, units).astype(float)


def interval(values: Floats) -> list[float] | None:
    """The central 95 % of the resamples in which the score is defined; None if there are none."""
    defined = values[np.isfinite(values)]
    return np.percentile(defined, [2.5, 97.5]).tolist() if len(defined) else None


def interval_over(seeds: int) -> dict[str, Any]:
    """``{"interval_over": "rows"}`` for an interval over one seed; ``{}`` if it is over seeds too.

    Args:
        seeds: the number of seeds; the smallest where several scores are involved.
    """
    return {"interval_over": "rows"} if seeds == 1 else {}
