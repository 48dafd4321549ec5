"""Scores of predictions by scikit-learn and SciPy, in percent.

A metric that is undefined for the rows at hand raises; no number is ever put in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric

Outputs = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


class Predictions(NamedTuple):
    """What is counted: N labelled rows, or words.

    Attributes:
        truth: [N] classes; [N, L] 0/1 for multi-label.
        guess: the same.
        row: [N] the row that each belongs to.
    """

    truth: Integers
    guess: Integers
    row: Integers


def measure(metric: Metric, outputs: Outputs, rows: Rows, labels: Sequence[str]) -> float:
    """The metric of predictions against the rows' labels, times 100.

    Multi-label guesses are the logits above 0; all other guesses are the largest logit. `macro-f1`
    is over the classes that occur in labels or guesses. `group-f1` and `group-exact` are MultiRC's
    (Khashabi et al. 2018): F1 over all answers, and questions with every answer right.

    Args:
        outputs: logits [R, L]; [R, 1] for a correlation; [R, C] for choice; for tokens [W, L] of
            all words, labelled or not.
        labels: names of the classes, for `span-f1`.

    Raises:
        ValueError: the metric is undefined here, such as the correlation of a constant, or the
            outputs are not finite.
    """
    if metric in ("pearson", "spearman"):
        return 100.0 * _correlation(metric, outputs, rows)
    truth, guess, row = predictions(outputs, rows)
    if metric in ("accuracy", "macro-f1", "micro-f1") or (metric == "matthews" and truth.ndim == 1):
        return 100.0 * _of_classes(metric, truth, guess)
    if truth.ndim == 2:
        raise ValueError(f"{metric} is not for several labels a row: use micro-f1 or macro-f1")
    if metric == "span-f1":
        hits, guessed, gold = span_counts(truth, guess, row, labels).sum(0)
        if not gold:
            raise ValueError("span-f1 is undefined: the labels hold no span")
        return 100.0 * float(2 * hits / (guessed + gold))
    if metric == "group-exact":
        wrong = np.bincount(group_of(rows)[row], truth != guess)
        return 100.0 * float((wrong == 0).mean())
    check_two_classes(metric, truth, outputs.shape[-1])
    from sklearn.metrics import f1_score

    return 100.0 * float(f1_score(truth == 1, guess == 1))


def predictions(outputs: Outputs, rows: Rows) -> Predictions:
    """Gold and guessed classes of labelled rows or words.

    Raises:
        ValueError: the outputs are not finite.
    """
    _check_finite(outputs)
    row = np.arange(len(rows))
    if rows.labels.ndim == 2:
        return Predictions(rows.labels.astype(int), (outputs > 0).astype(int), row)
    if len(rows.labels) != len(rows):  # one a word
        row = np.repeat(row, [len(texts) for texts in rows.texts])
    known = rows.labels >= 0
    return Predictions(rows.labels[known].astype(int), outputs[known].argmax(-1), row[known])


def _check_finite(outputs: Outputs) -> None:
    if not outputs.size or not np.isfinite(outputs).all():
        raise ValueError("fine-tuning diverged: its outputs are not finite")


def check_two_classes(metric: Metric, truth: Integers, classes: int) -> None:
    """Raises ValueError unless there are two classes and both are among the labels."""
    if classes != 2:
        raise ValueError(f"{metric} is of two classes, not {classes}: use macro-f1 or micro-f1")
    _check_varied(metric, truth)


def _check_varied(metric: Metric, truth: Integers) -> None:
    if truth.min() == truth.max():
        raise ValueError(f"{metric} is undefined: every label is {truth.flat[0]}")


def group_of(rows: Rows) -> Integers:
    """[R] number of each row's group.

    Raises:
        ValueError: the rows have no groups.
    """
    if not rows.groups:
        raise ValueError("the rows have no groups: give the task a `group`")
    return np.unique(np.array(rows.groups), return_inverse=True)[1]


def _correlation(metric: Metric, outputs: Outputs, rows: Rows) -> float:
    from scipy import stats

    _check_finite(outputs)
    guess, truth = outputs[:, 0].astype(float), rows.labels.astype(float)
    for values, what in ((guess, "predictions"), (truth, "labels")):
        if np.ptp(values) == 0.0:
            raise ValueError(f"{metric} is undefined: all {what} are {values[0]:g}")
    correlate = stats.pearsonr if metric == "pearson" else stats.spearmanr
    return float(correlate(guess, truth)[0])


def _of_classes(metric: Metric, truth: Integers, guess: Integers) -> float:
    from sklearn import metrics

    if metric == "accuracy":
        return float(metrics.accuracy_score(truth, guess))
    if metric == "matthews":
        _check_varied(metric, truth)
        # All guesses alike: 0, as scikit-learn and the GLUE leaderboard have it.
        return float(metrics.matthews_corrcoef(truth, guess))
    if truth.ndim == 2:
        present = np.flatnonzero((truth | guess).any(0))
    else:
        present = np.union1d(truth, guess)
    if not len(present):
        raise ValueError(f"{metric} is undefined: no row has a label, nor a guess")
    average = "macro" if metric == "macro-f1" else "micro"
    return float(metrics.f1_score(truth, guess, labels=present, average=average))


def span_counts(truth: Integers, guess: Integers, row: Integers, labels: Sequence[str]) -> Integers:
    """Spans of every row: right ones, guessed ones, gold ones; [rows, 3].

    Raises:
        ValueError: labels that are not ``O``, ``B-...`` or ``I-...``.
    """
    for label in labels:
        if label != "O" and label[:2] not in ("B-", "I-"):
            raise ValueError(f"span-f1 needs labels O, B-... and I-..., not {label!r}")
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    counts = np.zeros((int(row[-1]) + 1, 3), np.int64)
    for words in np.split(np.arange(len(row)), starts[1:]):
        gold, guessed = (spans([labels[n] for n in part[words]]) for part in (truth, guess))
        counts[row[words[0]]] = len(gold & guessed), len(guessed), len(gold)
    return counts


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Spans as (first word, word after the last, kind), read as CoNLL's scorer reads BIO tags.

    ``I-x`` that does not continue an ``x`` begins one.
    """
    found = set()
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        new = tag[2:]
        if kind and (tag[0] != "I" or new != kind):
            found.add((begin, place, kind))
            kind = ""
        if new and not kind:
            begin, kind = place, new
    return found
