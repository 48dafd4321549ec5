"""A task as it is evaluated: tokenized, with its jobs, and what is to say about its rows.

With folds, models are fine-tuned on parts of its rows, and what they predict is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crammed.evaluation.finetuning.arrays import save_arrays
from crammed.evaluation.finetuning.jobs import FinetuneJob
from crammed.evaluation.finetuning.task import FinetuneTask
from crammed.evaluation.linear import FEATURES
from crammed.evaluation.scores.score import positive_of
from crammed.evaluation.scores.table import left_out
from crammed.files.hashes import json_hash
from crammed.quantity import counted
from crammed.tasks.folds import Integers, parts_of
from crammed.tasks.rows import TaskData
from crammed.tasks.task import OF_ONE, Task


@dataclass(frozen=True)
class Fold:
    """A part of the rows: a task that trains on all others, and where the part's outputs go."""

    number: int
    task: FinetuneTask
    places: Integers

    def job(self, whole: FinetuneJob) -> FinetuneJob:
        """The job on this part, of a job on all rows."""
        file = whole.file.parent / f"fold-{self.number}" / whole.file.name
        return replace(whole, task=self.task, file=file, key=json_hash([whole.key, self.number]))


@dataclass(frozen=True)
class PreparedTask:
    """A task that has been read and tokenized.

    Attributes:
        key: digest of the data and of how it is read.
        folds: the parts that are fine-tuned on in place of all rows, if it is cross-validated.
        cut: how many sequences of each split were truncated.
    """

    task: Task
    data: TaskData
    about: dict[str, Any]
    key: str
    jobs: list[FinetuneJob]
    cut: dict[str, int]
    folds: list[Fold]

    @property
    def linear_key(self) -> str:
        """Digest of what the linear model's score depends on."""
        positive = self.task.positive
        return json_hash([self.key, FEATURES, *([] if positive is None else [positive])])

    def unfinished(self) -> list[FinetuneJob]:
        """The jobs that have to run; with folds, those on parts in place of those on all rows."""
        waiting = [job for job in self.jobs if not job.finished()]
        if not self.folds:
            return waiting
        parts = [fold.job(job) for fold in self.folds for job in waiting]
        return [job for job in parts if not job.finished()]

    def to_score(self) -> list[FinetuneJob]:
        """The jobs whose outputs are scored: none of the untrained model's if one has failed."""
        floor = all(job.finished() for job in self.jobs if not job.trained)
        return [job for job in self.jobs if job.trained or floor]

    def join(self) -> None:
        """Save the outputs for all rows of the jobs whose parts are finished."""
        for whole in self.jobs:
            parts = [fold.job(whole) for fold in self.folds]
            if not parts or whole.finished() or not all(job.finished() for job in parts):
                continue
            order = np.argsort(np.concatenate([fold.places for fold in self.folds]))
            found = [job.outputs() for job in parts]
            joined = {
                name: np.concatenate([each[name] for each in found])[order]
                for name in whole.task.scored
            }
            save_arrays(whole.file, joined, {"key": whole.key})


def remarks(task: Task, data: TaskData) -> Iterator[str]:
    """What was read otherwise than a user may expect, in words."""
    yield from left_out(task, data.scored, data.train)
    scored = {task.numbers[name].key: rows for name, rows in data.scored.items()}
    for split, rows in scored.items():
        pairs = [(part.rows, part.train) for part in parts_of(data)] or [(rows, data.train)]
        if known := sum(some.known_from(train) for some, train in pairs):
            yield (
                f"{known:,} of {counted(len(rows), 'row')} of {split} have the same text as a "
                "training row, so they say nothing about new text"
            )
    folded = ["".join(label.lower().split()) for label in data.labels]
    times = Counter(folded)
    alike = [label for label, one in zip(data.labels, folded, strict=True) if times[one] > 1]
    if alike and not task.labels and len(task.label) == 1:
        yield (
            f"labels {', '.join(map(repr, alike[:6]))} differ only in case or spaces, but count "
            "as different classes: correct the data if they are the same"
        )
    of_one = [metric for metric in task.metrics if metric in OF_ONE]
    if of_one and not task.labels and task.positive is None and positive_of(task, data.labels):
        other, positive = data.labels
        yield (
            f"{' and '.join(of_one)} of {positive}, the second label in order; for the other "
            f"one, add positive: {other}"
        )
