"""Raises an `InputError` for rows that teach nothing, or that no metric of their task can score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import yamlfile
from crammed.errors import InputError
from crammed.tasks.labels import listed
from crammed.tasks.rows import Rows
from crammed.tasks.task import OF_ONE, OF_TWO, Metric, Task

_OF_DIFFERENT: tuple[Metric, ...] = (*OF_ONE, "matthews", "pearson", "spearman")
"""Metrics that are undefined where every label is the same, whatever is predicted."""


def check_metrics(task: Task, names: Sequence[str]) -> None:
    """Check that every metric can score these classes."""
    shown = listed(names)
    for metric in task.metrics:
        if metric in OF_TWO and len(names) != 2:
            raise InputError(f"task {task.name}: metric {metric} takes two labels, not {shown}")
        if task.positive is not None and task.positive not in names:
            raise InputError(
                f"task {task.name}: positive {task.positive!r} is not one of its labels: {shown}"
            )
        other = [name for name in names if name != "O" and name[:2] not in ("B-", "I-")]
        if metric == "span-f1" and other:
            raise InputError(
                f"task {task.name}: span-f1 needs labels O, B-... and I-..., not "
                f"{yamlfile.shown(other[0])}; name them in `labels` if the data has numbers"
            )


def check_training(shown: str, task: Task, rows: Rows, names: Sequence[str]) -> None:
    only = _only_label(shown, task, rows, names)
    if only is not None and task.kind != "choice":
        raise InputError(f"{shown}: every label is {only}: there is nothing to learn")


def check_scored(
    shown: str, task: Task, metrics: Sequence[Metric], rows: Rows, names: Sequence[str]
) -> None:
    """Check that none of these metrics is undefined whatever is predicted."""
    if task.kind == "multi-label" or (only := _only_label(shown, task, rows, names)) is None:
        return
    for metric in metrics:
        if metric in _OF_DIFFERENT or (metric == "span-f1" and only == "O"):
            raise InputError(
                f"{shown}: every label is {only}, so {metric} is undefined: add rows, or name "
                "another metric"
            )


def _only_label(shown: str, task: Task, rows: Rows, names: Sequence[str]) -> str | None:
    """The label that all rows, or all words with one, have; None if there are several."""
    labels = rows.labels[rows.labels >= 0] if task.kind == "tokens" else rows.labels
    if not labels.size:
        raise InputError(f"{shown}: no row has a label")
    if labels.min() != labels.max():
        return None
    single = f"{labels.flat[0]:g}"
    return names[int(single)] if names and labels.ndim == 1 else single


def in_32_bits(shown: str, labels: Sequence[Any]) -> NDArray[np.float32]:
    """The labels as an array; an InputError if most values of a regression become the same."""
    rounded = np.asarray(labels, np.float32)
    values = {*labels} if isinstance(labels[0], float) else ()
    if values and 2 * len({*rounded.tolist()}) <= len(values):
        raise InputError(
            f"{shown}: labels from {min(values):.17g} to {max(values):.17g} differ by too little "
            "for numbers in 32 bits: subtract the smallest from all, or scale them"
        )
    return rounded


def check_answers(tests: Mapping[str, Rows], names: Sequence[str]) -> None:
    """Check that leaderboards' files can hold what rows are called, and their classes."""
    for file, rows in tests.items():
        for value in (*rows.index, *names) if file.endswith(".tsv") else ():
            if any(mark in str(value) for mark in "\t\n\r"):
                raise InputError(
                    f"{file} cannot hold the label or idx {yamlfile.shown(value)}, which has a tab "
                    f"or a line break: name it {file.removesuffix('.tsv')}.jsonl in the suite"
                )


def check_folds(shown: str, folds: int, rows: Rows) -> None:
    """Raise an InputError if a part would have no row."""
    units, of = (len({*rows.groups}), "groups") if rows.groups else (len(rows), "rows")
    if units < folds:
        raise InputError(f"{shown}: {units} {of} are too few for {folds} folds")
