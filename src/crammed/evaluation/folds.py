"""Fine-tunes on parts of a task's rows, and joins what the models of all parts predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crammed.evaluation.finetuning.arrays import save_arrays
from crammed.evaluation.finetuning.jobs import FinetuneJob
from crammed.evaluation.finetuning.task import FinetuneTask
from crammed.files.hashes import json_hash
from crammed.tasks.folds import Integers


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


def unfinished(jobs: Iterable[FinetuneJob], folds: Sequence[Fold]) -> list[FinetuneJob]:
    """The jobs that have to run; with folds, those on parts in place of those on all rows."""
    waiting = [job for job in jobs if not job.finished()]
    if not folds:
        return waiting
    parts = [fold.job(job) for fold in folds for job in waiting]  # those of a task together
    return [job for job in parts if not job.finished()]


def join(jobs: Iterable[FinetuneJob], folds: Sequence[Fold]) -> None:
    for whole in jobs:
        parts = [fold.job(whole) for fold in folds]
        if not folds or whole.finished() or not all(job.finished() for job in parts):
            continue
        order = np.argsort(np.concatenate([fold.places for fold in folds]))
        found = [job.outputs() for job in parts]
        joined = {
            name: np.concatenate([each[name] for each in found])[order]
            for name in whole.task.scored
        }
        save_arrays(whole.file, joined, {"key": whole.key})
