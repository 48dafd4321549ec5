"""What metrics count: gold and predicted classes of rows or words, and spans of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crammed.tasks.rows import Rows

Outputs = NDArray[np.floating[Any]]
"""A fine-tuned model's outputs for one split: logits [R, L]; values [R, 1] for regression; [R, C]
for multiple choice with C choices; [W, L] for token classification, one row for each word."""
Integers = NDArray[np.int64]


class Predictions(NamedTuple):
    """Gold and predicted classes of N labelled rows or words.

    Attributes:
        truth: [N] classes; [N, L] 0/1 for multi-label.
        guess: the predictions, of the same shape.
        row: [N] the row that each item belongs to.
    """

    truth: Integers
    guess: Integers
    row: Integers


def predictions(outputs: Outputs, rows: Rows) -> Predictions:
    """Classes of the rows or words that have a label.

    A multi-label row is predicted to have every label whose logit is above 0; for other kinds, the
    prediction is the class with the largest logit.

    Raises:
        ValueError: the outputs are not finite, or no row has a label.
    """
    check_finite(outputs)
    row = np.arange(len(rows))
    if rows.labels.ndim == 2:
        return Predictions(rows.labels.astype(int), (outputs > 0).astype(int), row)
    if len(rows.labels) != len(rows):  # one label for each word
        row = np.repeat(row, [len(texts) for texts in rows.texts])
    known = rows.labels >= 0
    if not known.any():
        raise ValueError("no row has a label")
    return Predictions(rows.labels[known].astype(int), outputs[known].argmax(-1), row[known])


def probabilities(outputs: Outputs, *, several: bool) -> NDArray[np.float64]:
    """Outputs as probabilities, [R, L]: softmax; with `several` labels in a row, the sigmoid."""
    logits = outputs.astype(np.float64)
    if several:
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def check_finite(outputs: Outputs) -> None:
    """Raises ValueError if there are no outputs, or one of them is infinite or not a number."""
    if not outputs.size or not np.isfinite(outputs).all():
        raise ValueError("fine-tuning diverged: its outputs are not finite")


def group_of(rows: Rows) -> Integers:
    """[R] the number of each row's group.

    Raises:
        ValueError: the rows have no groups.
    """
    if not rows.groups:
        raise ValueError("the rows have no groups: give the task a `group`")
    return np.unique(np.array(rows.groups), return_inverse=True)[1]


def span_counts(truth: Integers, guess: Integers, row: Integers, labels: Sequence[str]) -> Integers:
    """For each row, how many spans are correct, predicted and gold: [rows, 3].

    Raises:
        ValueError: a label is not ``O``, ``B-...`` or ``I-...``.
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

    An ``I-x`` that does not continue an ``x`` begins one.
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
