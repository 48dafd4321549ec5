"""Cross-validation: each part of the training rows is scored by a model of the other parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crammed.keys import key
from crammed.tasks.rows import Rows, TaskData

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One of the parts.

    Attributes:
        train: the rows of all other parts.
        rows: its own.
        places: of the labels and outputs of its rows among those of all rows.
    """

    train: Rows
    rows: Rows
    places: Integers


def parts_of(data: TaskData) -> Iterator[Part]:
    """The parts of a task's training rows, always the same.

    Rows of a class, and of similar values, are spread over all parts; rows of a group stay
    together.
    """
    number = _numbers(data.train, data.folds) if data.folds else None
    for part in range(data.folds):
        own, others = np.flatnonzero(number == part), np.flatnonzero(number != part)
        places = _places(data.train, own)
        yield Part(taken(data.train, others), taken(data.train, own), places)


def taken(rows: Rows, chosen: Integers) -> Rows:
    """Those of the rows that have these numbers."""
    sequences = (chosen[:, None] * rows.choices + np.arange(rows.choices)).ravel().tolist()
    return replace(
        rows,
        texts=[rows.texts[sequence] for sequence in sequences],
        labels=rows.labels[_places(rows, chosen)],
        groups=[rows.groups[row] for row in chosen.tolist()] if rows.groups else [],
        index=[rows.index[row] for row in chosen.tolist()] if rows.index else [],
    )


def _numbers(rows: Rows, folds: int) -> Integers:
    """[R] the number of the part that each row is in."""
    draw = np.random.Generator(np.random.PCG64(key(0, "folds")))
    group = np.arange(len(rows))
    if rows.groups:
        group = np.unique(np.array(rows.groups), return_inverse=True)[1]
    order = draw.permutation(int(group.max()) + 1)
    if not rows.groups and rows.labels.ndim == 1 and len(rows.labels) == len(rows):
        order = order[np.argsort(rows.labels[order], kind="stable")]
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) % folds
    return np.asarray(number[group])


def _places(rows: Rows, chosen: Integers) -> Integers:
    """Where the labels of these rows are: one for each row, or one for each word."""
    if len(rows.labels) == len(rows):
        return chosen
    ends = np.cumsum([len(texts) for texts in rows.texts])
    begins = np.concatenate([[0], ends[:-1]])
    return np.concatenate([np.arange(begins[row], ends[row]) for row in chosen.tolist()])
