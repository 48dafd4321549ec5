"""A task as it is evaluated: tokenized, with its jobs, and what is to say about its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crammed.evaluation.finetuning.jobs import FinetuneJob
from crammed.evaluation.folds import Fold
from crammed.evaluation.scores.score import positive_of
from crammed.evaluation.scores.table import left_out
from crammed.files.hashes import json_hash
from crammed.quantity import counted
from crammed.tasks.folds import parts_of
from crammed.tasks.rows import TaskData
from crammed.tasks.task import OF_ONE, Task


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
        return self.key if positive is None else json_hash([self.key, positive])


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
