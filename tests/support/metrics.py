"""Reference metrics: scikit-learn's, and those of MultiRC and CoNLL by their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics

from crammed.evaluation.scores.predictions import spans
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric


def reference(metric: Metric, outputs: Any, rows: Rows, labels: Sequence[str]) -> float | None:
    """The metric as a fraction; None if it is undefined.

    At least one row must have a label; for group metrics, every row.
    """
    if metric in ("pearson", "spearman"):
        correlate = stats.pearsonr if metric == "pearson" else stats.spearmanr
        constant = np.ptp(outputs) == 0 or np.ptp(rows.labels) == 0
        return None if constant else float(correlate(outputs[:, 0], rows.labels)[0])
    if rows.labels.ndim == 2:
        truth, guess = rows.labels.astype(int), (outputs > 0).astype(int)
        present = np.flatnonzero((truth | guess).any(0))
    else:
        known = rows.labels >= 0
        truth, guess = rows.labels[known].astype(int), outputs[known].argmax(-1)
        present = np.union1d(truth, guess)
    if metric == "span-f1":
        return _span_f1(outputs.argmax(-1), rows, labels)
    if metric == "group-exact":
        right = dict.fromkeys(rows.groups, True)
        for group, t, g in zip(rows.groups, truth, guess, strict=True):
            right[group] &= bool(t == g)
        return sum(right.values()) / len(right)
    if metric == "accuracy":
        return float(metrics.accuracy_score(truth, guess))
    if metric in ("f1", "group-f1"):
        positive = rows.positive
        return float(metrics.f1_score(truth, guess, pos_label=positive)) if np.ptp(truth) else None
    if metric == "matthews":
        return float(metrics.matthews_corrcoef(truth, guess)) if np.ptp(truth) else None
    average = metric.removesuffix("-f1")
    score = (
        metrics.f1_score(truth, guess, labels=present, average=average) if len(present) else None
    )
    return score if score is None else float(score)


def _span_f1(guess: Any, rows: Rows, labels: Sequence[str]) -> float | None:
    hits, found, wanted = 0, 0, 0
    ends = np.cumsum([len(texts) for texts in rows.texts])
    for truth, own in zip(np.split(rows.labels, ends), np.split(guess, ends), strict=True):
        known = truth >= 0
        gold, guessed = (spans([labels[int(n)] for n in part[known]]) for part in (truth, own))
        hits, found, wanted = hits + len(gold & guessed), found + len(guessed), wanted + len(gold)
    return 2 * hits / (found + wanted) if wanted else None
