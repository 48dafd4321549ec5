"""What untrained models predict, shared by evaluations of models of the same shape.

An untrained model depends on the shape and the tokenizer of the trained one, and not on its
weights. So the runs of one arm of a study, however many seeds and budgets it has, all have the same
untrained twin, which needs to be fine-tuned only once.

DIR/SHAPE/predictions/SUITE/TASK/untrained-0.npz    as in an evaluation folder
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from crammed.config import Protocol
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.jobs import FinetuneJob
from crammed.evaluation.folder import outputs_file
from crammed.files.hashes import json_hash
from crammed.files.locks import FolderLock


@dataclass(frozen=True)
class SharedTwins:
    """Where evaluations share the predictions of one untrained model.

    Attributes:
        folder: for this shape, protocol, device and number format only.
    """

    folder: Path

    @classmethod
    def of(
        cls, folder: Path, backbone: Backbone, protocol: Protocol, numerics: Numerics
    ) -> SharedTwins:
        """The place of a model's untrained twin in a folder that may hold many."""
        where = [numerics.device.type, str(numerics.dtype)]
        shape = json_hash([backbone.shape_sha256, protocol.hyperparameters(), where])
        return cls(folder / shape[:16])

    def take(self, suite: str, jobs: Iterable[FinetuneJob]) -> None:
        """Copy what is there for unfinished jobs of the untrained model."""
        for job, shared in self._pairs(suite, jobs):
            if not job.finished() and shared.finished():
                _copy(shared, job)

    def give(self, suite: str, jobs: Iterable[FinetuneJob]) -> None:
        """Copy what finished jobs of the untrained model predict, unless it is there already.

        Raises:
            InputError: the folder cannot be written to, or another process is writing to it.
        """
        new = [
            (job, shared)
            for job, shared in self._pairs(suite, jobs)
            if job.finished() and not shared.finished()
        ]
        if new:
            with FolderLock(self.folder):  # one temporary file would serve two writers
                for job, shared in new:
                    _copy(job, shared)

    def _pairs(
        self, suite: str, jobs: Iterable[FinetuneJob]
    ) -> Iterator[tuple[FinetuneJob, FinetuneJob]]:
        for job in jobs:
            if not job.trained:
                file = outputs_file(self.folder, suite, job.task.name, job.seed, trained=False)
                yield job, replace(job, file=file)


def _copy(source: FinetuneJob, target: FinetuneJob) -> None:
    loaded = load_arrays(source.file)
    if loaded is not None:  # None if someone has just removed it
        save_arrays(target.file, *loaded)
