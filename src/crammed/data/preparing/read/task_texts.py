"""Texts of tasks as text to train on: those of the rows that the tasks are fine-tuned on.

Task-adaptive pretraining (Gururangan et al. 2020, section 4) reads them before fine-tuning does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crammed.files.hashes import json_hash
from crammed.formats.lines import STOP, Faults
from crammed.tasks.read import folder_of, training_splits, training_texts
from crammed.tasks.task import load_suite

_OF_TEXT = {"kind", "text", "choices", "choice_text", "most_rows"}
"""Keys of a task that decide its texts."""


@dataclass(frozen=True)
class TrainingTexts:
    """The training rows of a task, as a part of a source.

    Attributes:
        suite, data: as in `SourceConfig`.
    """

    suite: str
    data: str
    task: str

    @property
    def name(self) -> str:
        return f"{self.task}, train"

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        suite = load_suite(self.suite)
        return training_texts(suite.tasks[self.task], folder_of(self.data), suite)

    def fingerprint(self) -> dict[str, Any]:
        suite = load_suite(self.suite)
        split = training_splits(suite, folder_of(self.data))[self.task]
        settings = suite.tasks[self.task].model_dump(mode="json", include=_OF_TEXT)
        return {"name": self.name, "sha256": json_hash([settings, split.digest()])}

    def state(self) -> dict[str, Any]:
        return self.fingerprint()


def open_training_texts(suite: str, data: str) -> tuple[str, list[TrainingTexts]]:
    """A name for the source, and its parts.

    Raises:
        InputError: there is no such suite or no data, or training rows are scored.
    """
    loaded = load_suite(suite)
    names = training_splits(loaded, folder_of(data))
    return f"tasks of {loaded.name}", [TrainingTexts(suite, data, name) for name in names]
