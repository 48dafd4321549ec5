"""Metrics as functions of row weights, so that thousands of resamples take a moment.

Every metric but Spearman's is a function of counts that add up over rows. A resample is how often
it has each unit (a row, or a group of rows); a metric undefined on a resample is NaN there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from crammed.evaluation.scores.metrics import Integers, Outputs, group_of, predictions, span_counts
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric

Floats = NDArray[np.float64]
Weighted = Callable[[Floats], Floats]
"""Weights [B, units] -> the metric in percent [B]."""


def units_of(rows: Rows) -> Integers:
    """[R] the unit of each row: its group where the rows have groups, for what belongs together
    is drawn together."""
    return group_of(rows) if rows.groups else np.arange(len(rows))


def weighted(metric: Metric, outputs: Outputs, rows: Rows, labels: Sequence[str]) -> Weighted:
    """The metric of these predictions as a function of the units' weights.

    Raises:
        ValueError: as `crammed.evaluation.scores.metrics.measure`.
    """
    unit = units_of(rows)
    if metric == "spearman":
        return _spearman(outputs[:, 0].astype(float), rows.labels.astype(float), unit)
    if metric == "pearson":
        guess, value = outputs[:, 0].astype(float), rows.labels.astype(float)
        x, y = guess - guess.mean(), value - value.mean()
        counts = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        return _additive(counts, unit, _pearson)
    truth, guess, row = predictions(outputs, rows)
    if metric == "span-f1":
        return _additive(span_counts(truth, guess, row, labels), unit[: row[-1] + 1], _spans)
    unit = unit[row]
    if metric == "group-exact":
        exact = np.bincount(unit, truth != guess) == 0
        return _additive(_share(exact), np.arange(len(exact)), _mean)
    if metric == "accuracy":
        right = truth == guess
        return _additive(_share(right.all(1) if right.ndim == 2 else right), unit, _mean)
    if metric in ("f1", "group-f1"):
        pairs = [(1, 1), (0, 1), (1, 0), (0, 0)]
        counts = np.stack([(truth == t) & (guess == g) for t, g in pairs], 1)
        return _additive(counts, unit, _f1)
    classes = outputs.shape[-1]
    if truth.ndim == 2:
        gold, guessed = truth == 1, guess == 1
    else:
        gold = truth[:, None] == np.arange(classes)
        guessed = guess[:, None] == np.arange(classes)
    if metric == "matthews":
        right = (truth == guess).astype(float)
        counts = np.column_stack([np.ones_like(right), right, gold, guessed])
        return _additive(counts, unit, _matthews)
    counts = np.stack([gold & guessed, guessed & ~gold, gold & ~guessed], 1)  # [N, 3, L]
    if metric == "micro-f1":
        return _additive(counts.sum(-1), unit, lambda sums: _ratio(*np.moveaxis(sums, -1, 0)))
    return _additive(counts.reshape(len(counts), -1), unit, _macro)


def _additive(counts: NDArray[np.generic], unit: Integers, finish: Weighted) -> Weighted:
    """counts [N, K] of the units [N]; finish: sums [B, K] -> metric as a fraction [B]."""
    sums = np.zeros((int(unit.max()) + 1, counts.shape[1]))
    np.add.at(sums, unit, counts.astype(float))

    def metric(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            value: Floats = 100.0 * finish(weights[:, : len(sums)] @ sums)
        return value

    return metric


def _share(right: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.stack([right, np.ones_like(right)], 1).astype(float)


def _mean(sums: Floats) -> Floats:
    return sums[:, 0] / sums[:, 1]


def _ratio(hit: Floats, false: Floats, missed: Floats) -> Floats:
    return 2 * hit / (2 * hit + false + missed)


def _f1(sums: Floats) -> Floats:
    hit, false, missed, passed = sums.T
    one_class = (hit + missed == 0) | (false + passed == 0)
    return np.where(one_class, np.nan, _ratio(hit, false, missed))


def _spans(sums: Floats) -> Floats:
    hits, guessed, gold = sums.T
    return np.where(gold == 0, np.nan, 2 * hits / (guessed + gold))


def _macro(sums: Floats) -> Floats:
    hit, false, missed = np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)
    present = hit + false + missed > 0
    each = np.where(present, _ratio(hit, false, missed), 0.0)
    mean: Floats = each.sum(1) / present.sum(1)
    return mean


def _matthews(sums: Floats) -> Floats:
    """Gorodkin's (2004) coefficient, from the margins of the confusion matrix."""
    rows, right = sums[:, :2].T
    gold, guessed = np.split(sums[:, 2:], 2, axis=1)
    over = rows * right - (gold * guessed).sum(1)
    spread_guess = rows**2 - (guessed**2).sum(1)
    spread_gold = rows**2 - (gold**2).sum(1)
    value = np.where(spread_guess == 0, 0.0, over / np.sqrt(spread_guess * spread_gold))
    return np.where(spread_gold == 0, np.nan, value)


def _pearson(sums: Floats) -> Floats:
    n, x, y, xx, yy, xy = sums.T
    spread_x, spread_y = n * xx - x * x, n * yy - y * y
    constant = (spread_x <= 1e-12 * n * xx) | (spread_y <= 1e-12 * n * yy)
    return np.where(constant, np.nan, (n * xy - x * y) / np.sqrt(spread_x * spread_y))


def _spearman(guess: Floats, truth: Floats, unit: Integers) -> Weighted:
    places = [np.unique(values, return_inverse=True)[1] for values in (guess, truth)]

    def metric(weights: Floats) -> Floats:
        return np.array([100.0 * one(each[unit]) for each in weights])

    def one(weight: Floats) -> float:
        ranks = []
        for place in places:
            tied = np.bincount(place, weight)
            ranks.append((np.cumsum(tied) - tied / 2)[place])  # middle of the ties
        x, y = (rank - np.average(rank, weights=weight) for rank in ranks)
        sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(_pearson((weight @ sums)[None])[0])

    return metric
