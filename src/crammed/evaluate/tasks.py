"""The tasks: which columns, how many classes, which metric, how many rows are official."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crammed.data.sources import open_text
from crammed.errors import InputError


@dataclass(frozen=True)
class Task:
    """One fine-tuning task.

    Attributes:
        columns: the one or two text columns of a row.
        outputs: number of classes, or 1 for regression.
        metric: what is reported, as the paper does (section 5).
        official_rows: rows of (train, validation) as published; None for tasks of our own.
        validation: name of the validation split.
    """

    name: str
    columns: tuple[str, ...]
    outputs: int
    metric: str
    official_rows: tuple[int, int] | None
    validation: str = "validation"


_PAIR = ("sentence1", "sentence2")
_TASKS = (
    Task("cola", ("sentence",), 2, "matthews", (8551, 1043)),
    Task("sst2", ("sentence",), 2, "accuracy", (67349, 872)),
    Task("mrpc", _PAIR, 2, "f1", (3668, 408)),
    Task("stsb", _PAIR, 1, "pearson", (5749, 1500)),
    Task("qqp", ("question1", "question2"), 2, "f1", (363846, 40430)),
    Task("mnli", ("premise", "hypothesis"), 3, "accuracy", (392702, 9815), "validation_matched"),
    Task("qnli", ("question", "sentence"), 2, "accuracy", (104743, 5463)),
    Task("rte", _PAIR, 2, "accuracy", (2490, 277)),
    Task("wnli", _PAIR, 2, "accuracy", (635, 71)),
    # Made from the documentation on this machine, see crammed.data.python_docs.
    Task("docs-package", ("text",), 6, "accuracy", None),
    Task("docs-order", ("text",), 2, "accuracy", None),
)
TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
MADE_HERE = tuple(name for name in TASKS if name.startswith("docs-"))
GLUE = tuple(name for name in TASKS if name not in MADE_HERE)


@dataclass(frozen=True)
class TaskData:
    """A task's rows: texts with one entry a column, and labels."""

    task: Task
    train: list[tuple[tuple[str, ...], float]]
    validation: list[tuple[tuple[str, ...], float]]

    @property
    def official(self) -> bool | None:
        """Whether both splits have their official sizes; None for tasks of our own."""
        if self.task.official_rows is None:
            return None
        return (len(self.train), len(self.validation)) == self.task.official_rows


def tasks_in(folder: Path) -> list[str]:
    """Names of the GLUE tasks that a folder has.

    Raises:
        InputError: it has none, or is no folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of tasks")
    found = [name for name in GLUE if (folder / name).is_dir()]
    if not found:
        raise InputError(f"{folder} holds none of {', '.join(GLUE)}")
    return found


def find_tasks(names: Sequence[str], folder: Path | None) -> list[tuple[Task, Path]]:
    """The tasks of these names and their folders.

    Raises:
        InputError: an unknown task, or one whose files are missing.
    """
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        raise InputError(f"no task {', '.join(unknown)}: choose among {', '.join(TASKS)}")
    if not names:
        return []
    if folder is None:
        raise InputError(f"tasks {', '.join(names)} need their data: name its folder with --glue")
    found = []
    for name in names:
        for split in ("train", TASKS[name].validation):
            _split_file(folder / name, split)
        found.append((TASKS[name], folder / name))
    return found


def read_task(task: Task, folder: Path) -> TaskData:
    """Read both splits.

    Raises:
        InputError: a missing column, a label out of range, or an empty split.
    """
    train = _read_split(task, _split_file(folder, "train"))
    return TaskData(task, train, _read_split(task, _split_file(folder, task.validation)))


def _split_file(folder: Path, split: str) -> Path:
    if not folder.is_dir():
        raise InputError(f"{folder.parent} has no task {folder.name}")
    for suffix in (".jsonl.gz", ".jsonl", ".jsonl.zst"):
        if (file := folder / f"{split}{suffix}").is_file():
            return file
    raise InputError(f"{folder} has no {split}.jsonl, plain or compressed")


def _read_split(task: Task, file: Path) -> list[tuple[tuple[str, ...], float]]:
    rows = []
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{file}, line {number}: not valid JSON") from error
            rows.append(_read_row(task, row, f"{file}, line {number}"))
    if not rows:
        raise InputError(f"{file} holds no rows")
    return rows


def _read_row(task: Task, row: Any, where: str) -> tuple[tuple[str, ...], float]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    missing = [name for name in (*task.columns, "label") if name not in row]
    if missing:
        raise InputError(f"{where}: no column {', '.join(missing)} (it has: {', '.join(row)})")
    texts = tuple(row[name] for name in task.columns)
    label = row["label"]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: columns {', '.join(task.columns)} must hold text")
    if not isinstance(label, int | float) or isinstance(label, bool):
        raise InputError(f"{where}: label {label!r} is no number")
    if task.outputs > 1 and label not in range(task.outputs):
        raise InputError(f"{where}: label {label} is not one of 0 to {task.outputs - 1}")
    return texts, float(label)
