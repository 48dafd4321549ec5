"""Metrics of predictions, in percent: on the actual rows, and on bootstrap resamples of them.

Every metric except the rank correlation is a function of sums over rows. A resample is therefore
described by how often it drew each unit (a row, or a group of rows), and thousands of resamples
are quick to compute; the score itself is the case in which every unit was drawn once.

A metric that is undefined for the actual rows raises an error; on a resample it is NaN. No number
is ever substituted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from crammed.evaluation.scores.predictions import (
    Integers,
    Outputs,
    check_finite,
    group_of,
    predictions,
    span_counts,
)
from crammed.tasks.rows import Rows
from crammed.tasks.task import OF_ONE, Metric

Floats = NDArray[np.float64]
Weighted = Callable[[Floats], Floats]
"""How often each unit was drawn, [B, units] -> the metric, [B]."""
OfClasses = Callable[[Floats, Floats, Floats], Floats]
_MOST_SUMS = 4_000_000
"""Sums held in memory at once; 32 MB."""


def measure(metric: Metric, outputs: Outputs, rows: Rows, labels: Sequence[str]) -> float:
    """The metric of predictions against the labels of their rows, in percent.

    `macro-f1` averages over the classes that occur among labels or predictions. `group-f1` and
    `group-exact` are MultiRC's (Khashabi et al. 2018): F1 over all answers, and the share of
    questions whose answers are all correct. `matthews` is 0 where all predictions are the same, as
    in scikit-learn and on the GLUE leaderboard.

    Args:
        labels: names of the classes, which `span-f1` needs.

    Raises:
        ValueError: the metric is undefined here (such as the correlation with a constant) or does
            not suit the labels, or the outputs are not finite.
    """
    if metric in ("pearson", "spearman"):
        _require_variation(metric, outputs, rows)
    else:
        _require_classes(metric, outputs, rows)
    once = np.ones((1, int(units_of(rows).max()) + 1))
    value = float(weighted_metric(metric, outputs, rows, labels)(once)[0])
    if np.isnan(value):  # all other metrics were checked above
        raise ValueError(f"{metric} is undefined: the labels hold no span")
    return value


def _require_variation(metric: Metric, outputs: Outputs, rows: Rows) -> None:
    check_finite(outputs)
    for values, what in ((outputs[:, 0], "predictions"), (rows.labels, "labels")):
        if np.ptp(values) == 0.0:
            raise ValueError(f"{metric} is undefined: all {what} are {values[0]:g}")


def _require_classes(metric: Metric, outputs: Outputs, rows: Rows) -> None:
    truth = predictions(outputs, rows).truth
    if truth.ndim == 2 and metric not in ("accuracy", "macro-f1", "micro-f1"):
        raise ValueError(f"{metric} does not take several labels per row: use micro-f1 or macro-f1")
    if metric in OF_ONE and outputs.shape[-1] != 2:
        classes = outputs.shape[-1]
        raise ValueError(f"{metric} takes two classes, not {classes}: use macro-f1 or micro-f1")
    if metric in (*OF_ONE, "matthews") and truth.min() == truth.max():
        raise ValueError(f"{metric} is undefined: every label is {truth.flat[0]}")


def units_of(rows: Rows) -> Integers:
    """[R] the unit that each row is drawn with: its group if rows have groups, else the row."""
    return group_of(rows) if rows.groups else np.arange(len(rows))


def weighted_metric(
    metric: Metric, outputs: Outputs, rows: Rows, labels: Sequence[str]
) -> Weighted:
    """The metric of these predictions as a function of how often each unit was drawn.

    Raises:
        ValueError: the outputs are not finite, or labels or groups do not suit the metric.
    """
    unit = units_of(rows)
    if metric == "spearman":
        return _spearman(outputs[:, 0].astype(float), rows.labels.astype(float), unit)
    if metric == "pearson":
        guess, value = outputs[:, 0].astype(float), rows.labels.astype(float)
        x, y = guess - guess.mean(), value - value.mean()
        counts = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        return _of_sums(counts, unit, _pearson)
    truth, guess, row = predictions(outputs, rows)
    if metric == "span-f1":
        return _of_sums(span_counts(truth, guess, row, labels), unit[: row[-1] + 1], _spans)
    if metric == "group-exact":
        exact = np.bincount(group_of(rows)[row], truth != guess) == 0
        return _of_sums(_with_ones(exact), np.arange(len(exact)), _mean)
    unit = unit[row]
    if metric == "accuracy":
        right = truth == guess
        return _of_sums(_with_ones(right.all(1) if right.ndim == 2 else right), unit, _mean)
    if metric in OF_ONE:
        gold, guessed = truth == rows.positive, guess == rows.positive
        counts = np.stack([gold & guessed, ~gold & guessed, gold & ~guessed, ~gold & ~guessed], 1)
        return _of_sums(counts, unit, _f1)
    finish = {"matthews": _matthews, "micro-f1": _micro, "macro-f1": _macro}[metric]
    return _of_outcomes(truth, guess, unit, finish)


def _of_outcomes(truth: Integers, guess: Integers, unit: Integers, finish: OfClasses) -> Weighted:
    """A metric computed from how many predictions of each class hit, are false, or are missed.

    There may be as many classes as rows: a table of both, for each seed, would fill the memory.

    Args:
        truth, guess: [N] or [N, L], as in `Predictions`.
        unit: [N] the unit that each of them belongs to.
        finish: the counts of the L classes that occur, three times [B, L] -> the metric [B].
    """
    found = _outcomes(truth, guess)
    classes, place = np.unique(np.concatenate([each for _, each in found]), return_inverse=True)
    if not len(classes):
        raise ValueError("F1 is undefined: no row has a label or a prediction")
    width = 3 * len(classes)
    column = np.repeat(len(classes) * np.arange(3), [len(each) for _, each in found]) + place
    drawn_with = unit[np.concatenate([items for items, _ in found])]
    step = max(1, _MOST_SUMS // width)

    def metric(weights: Floats) -> Floats:
        values = []
        for start in range(0, len(weights), step):
            part = weights[start : start + step]
            sums = np.stack([np.bincount(column, each[drawn_with], width) for each in part])
            with np.errstate(invalid="ignore", divide="ignore"):
                values.append(100.0 * finish(*np.moveaxis(sums.reshape(len(part), 3, -1), 1, 0)))
        return np.concatenate(values)

    return metric


def _outcomes(truth: Integers, guess: Integers) -> list[tuple[Integers, Integers]]:
    """(items, classes) of the predictions that hit, of those that are false, and of the missed."""
    if truth.ndim == 2:
        gold, guessed = truth == 1, guess == 1
        masks = gold & guessed, guessed & ~gold, gold & ~guessed
        return [(items, classes) for items, classes in map(np.nonzero, masks)]
    right, wrong = np.flatnonzero(truth == guess), np.flatnonzero(truth != guess)
    return [(right, truth[right]), (wrong, guess[wrong]), (wrong, truth[wrong])]


def _of_sums(counts: NDArray[np.generic], unit: Integers, finish: Weighted) -> Weighted:
    """A metric computed from sums of counts over rows.

    Args:
        counts: [N, K].
        unit: [N] the unit that each row of counts belongs to.
        finish: sums [B, K] -> the metric as a fraction [B].
    """
    sums = np.zeros((int(unit.max()) + 1, counts.shape[1]))
    np.add.at(sums, unit, counts.astype(float))

    def metric(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            value: Floats = 100.0 * finish(weights[:, : len(sums)] @ sums)
        return value

    return metric


def _with_ones(right: NDArray[np.bool_]) -> Floats:
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


def _micro(hit: Floats, false: Floats, missed: Floats) -> Floats:
    return _ratio(hit.sum(1), false.sum(1), missed.sum(1))


def _macro(hit: Floats, false: Floats, missed: Floats) -> Floats:
    present = hit + false + missed > 0
    each = np.where(present, _ratio(hit, false, missed), 0.0)
    mean: Floats = each.sum(1) / present.sum(1)
    return mean


def _matthews(hit: Floats, false: Floats, missed: Floats) -> Floats:
    """Gorodkin's (2004) coefficient, from the margins of the confusion matrix."""
    gold, guessed = hit + missed, hit + false
    rows, right = gold.sum(1), hit.sum(1)
    over = rows * right - (gold * guessed).sum(1)
    spread_guess = rows**2 - (guessed**2).sum(1)
    spread_gold = rows**2 - (gold**2).sum(1)
    value = np.where(spread_guess == 0, 0.0, over / np.sqrt(spread_guess * spread_gold))
    return np.where(spread_gold == 0, np.nan, value)


def _pearson(sums: Floats) -> Floats:
    n, x, y, xx, yy, xy = sums.T
    spread_x, spread_y = n * xx - x * x, n * yy - y * y
    constant = (spread_x <= 1e-12 * n * xx) | (spread_y <= 1e-12 * n * yy)
    value = (n * xy - x * y) / np.sqrt(spread_x * spread_y)
    return np.where(constant, np.nan, np.clip(value, -1.0, 1.0))


def _spearman(guess: Floats, truth: Floats, unit: Integers) -> Weighted:
    places = [np.unique(values, return_inverse=True)[1] for values in (guess, truth)]

    def metric(weights: Floats) -> Floats:
        return np.array([100.0 * one(each[unit]) for each in weights])

    def one(weight: Floats) -> float:
        ranks = []
        for place in places:
            tied = np.bincount(place, weight)
            ranks.append((np.cumsum(tied) - tied / 2)[place])  # tied values share the mean rank
        x, y = (rank - np.average(rank, weights=weight) for rank in ranks)
        sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(_pearson((weight @ sums)[None])[0])

    return metric
