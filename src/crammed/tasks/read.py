"""Reading a task: its records as rows, every fault named with its file and line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from crammed.errors import InputError
from crammed.tasks.columns import TaskColumns, column
from crammed.tasks.labels import in_order, is_unlabelled, is_untagged, list_of, name_of
from crammed.tasks.layouts import Data, FoundSplit, open_data
from crammed.tasks.rows import Rows, TaskData, Texts
from crammed.tasks.task import OF_TWO, SplitSpec, Suite, Task


def tasks_in(suite: Suite, data: Path | None) -> list[str]:
    """Names of the suite's tasks whose training split is there; of the hub's, all.

    Raises:
        InputError: there is none, or `data` is no folder.
    """
    if data is None:
        return list(suite.tasks)
    opened = open_data(suite, data)
    found = [n for n, task in suite.tasks.items() if opened.find(task.folders, task.train)]
    if not found:
        raise _nothing(suite, data)
    return found


def splits_in(suite: Suite, data: Path | None) -> list[FoundSplit]:
    """Every split of the suite's tasks that is there: training, scored and test.

    Raises:
        InputError: there is none, or `data` is no folder.
    """
    opened = open_data(suite, data)
    wanted: dict[tuple[tuple[str, ...], str], None] = {}
    for task in suite.tasks.values():
        places = (SplitSpec(split=task.train), *task.numbers.values(), *task.test.values())
        wanted |= dict.fromkeys((_folders(task, at), at.split) for at in places)
    found = [split for at in wanted if (split := opened.find(*at)) is not None]
    if not found:
        raise _nothing(suite, data)
    return found


def _nothing(suite: Suite, data: Path | None) -> InputError:
    folders = ", ".join(" or ".join(task.folders) for task in suite.tasks.values())
    return InputError(
        f"{data or 'the hub'} holds no task of suite {suite.name}, which would be in folders "
        f"{folders}"
    )


def read_task(task: Task, data: Path | None, suite: Suite, *, test: bool = True) -> TaskData:
    """Read a task's training split, its scored splits and, with `test`, its unlabelled ones.

    Args:
        data: folder of the suite's data; None is the hub.

    Raises:
        InputError: what is missing or wrong, with file and line or row.
    """
    opened = open_data(suite, data)
    train = _need(opened, task, SplitSpec(split=task.train))
    scored = _there(opened, task, task.numbers)
    if not scored:
        _need(opened, task, next(iter(task.numbers.values())))
    tests = _there(opened, task, task.test) if test else {}
    names = _names(task, train)
    _check_metrics(task, names)
    rows = _read(train, task, TaskColumns(task, task.text, names))
    _check_training(train, task, rows, names)

    def read(split: FoundSplit, at: SplitSpec, *, labelled: bool) -> Rows:
        reader = TaskColumns(task, at.text or task.text, names)
        return _read(split, task, reader, choices=rows.choices, labelled=labelled)

    scored_rows = {n: read(each, task.numbers[n], labelled=True) for n, each in scored.items()}
    test_rows = {n: read(each, task.test[n], labelled=False) for n, each in tests.items()}
    sizes = {task.train: len(rows)}
    sizes |= {task.numbers[name].key: len(each) for name, each in scored_rows.items()}
    digest = hashlib.sha256()
    for split in (train, *scored.values()):
        digest.update(f"{split.digest()}\n".encode())
    return TaskData(
        train=rows,
        scored=scored_rows,
        test=test_rows,
        labels=names,
        rows=sizes | {task.test[name].key: len(each) for name, each in test_rows.items()},
        official=_official(task, sizes),
        sha256=digest.hexdigest(),
        test_sha256={name: _sha256(split.digest()) for name, split in tests.items()},
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _folders(task: Task, at: SplitSpec) -> tuple[str, ...]:
    return (at.folder,) if at.folder else task.folders


def _there(data: Data, task: Task, places: Mapping[str, SplitSpec]) -> dict[str, FoundSplit]:
    looked = {name: data.find(_folders(task, at), at.split) for name, at in places.items()}
    return {name: split for name, split in looked.items() if split is not None}


def _need(data: Data, task: Task, at: SplitSpec) -> FoundSplit:
    found = data.find(_folders(task, at), at.split)
    if found is None:
        raise InputError(f"task {task.name}: {data.lacks(_folders(task, at), at.split)}")
    return found


def _official(task: Task, sizes: Mapping[str, int]) -> bool | None:
    """Whether the splits that make scores have their official sizes; None if those are unknown."""
    if not sizes.keys() <= task.rows.keys():
        return None
    return all(task.rows[split] == size for split, size in sizes.items())


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Name the row in which a ValueError arises."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error


def _names(task: Task, train: FoundSplit) -> tuple[str, ...]:
    """Names of the classes; where the task has none, of those that the training split has."""
    if task.kind == "regression":
        return ()
    if task.kind == "choice":
        return _choice_names(task, train)
    if task.labels or len(task.label) > 1:
        return task.labels or task.label
    found: dict[str, None] = {}
    for place, record in train.records():
        with _at(place):
            value = column(record, task.label[0])
            if task.kind == "multi-label":
                given = list_of(value, ",")
            elif task.kind == "tokens":
                given = [tag for tag in list_of(value, None) if not is_untagged(tag)]
            else:
                given = [] if is_unlabelled(value) else [value]
            found |= dict.fromkeys(map(name_of, given))
    return in_order(found)


def _choice_names(task: Task, train: FoundSplit) -> tuple[str, ...]:
    for place, record in train.records():
        with _at(place):
            count = len(TaskColumns(task, task.text, ()).answers(record))
            if task.labels and len(task.labels) != count:
                raise ValueError(f"{count} answers, but the task names {len(task.labels)} labels")
        return task.labels or tuple(map(str, range(count)))
    raise InputError(f"{train.shown} holds no rows")


def _check_metrics(task: Task, names: Sequence[str]) -> None:
    """Raises InputError for a metric that these classes cannot be scored by."""
    for metric in task.metrics:
        if metric in OF_TWO and len(names) != 2:
            shown = ", ".join(names)
            raise InputError(f"task {task.name}: metric {metric} is of two labels, not of {shown}")
        other = [name for name in names if name != "O" and name[:2] not in ("B-", "I-")]
        if metric == "span-f1" and other:
            raise InputError(
                f"task {task.name}: span-f1 needs labels O, B-... and I-..., not {other[0]!r}; "
                "name them in `labels` if the data has numbers"
            )


def _check_training(split: FoundSplit, task: Task, rows: Rows, names: Sequence[str]) -> None:
    """Raises InputError where there is nothing to learn."""
    labels = rows.labels[rows.labels >= 0] if task.kind == "tokens" else rows.labels
    if not labels.size:
        raise InputError(f"{split.shown}: no word has a label")
    if task.kind != "choice" and labels.min() == labels.max():
        single = f"{labels.flat[0]:g}"
        value = names[int(single)] if names and labels.ndim == 1 else single
        raise InputError(f"{split.shown}: every label is {value}: there is nothing to learn")


def _read(
    split: FoundSplit, task: Task, reader: TaskColumns, *, choices: int = 0, labelled: bool = True
) -> Rows:
    """The rows of one split.

    Args:
        choices: sequences that a row must have; 0 is as many as the first has.
        labelled: read labels; otherwise they are NaN, whatever the data says.
    """
    texts: list[Texts] = []
    labels: list[Any] = []
    groups: list[str] = []
    index: list[Any] = []
    for place, record in split.records():
        with _at(place):
            sequences = reader.texts(record)
            choices = choices or len(sequences)
            if len(sequences) != choices:
                raise ValueError(f"{len(sequences)} answers, but other rows have {choices}")
            labels += reader.labels(record, sequences) if labelled else reader.no_labels()
            group = reader.group(record)
        texts += sequences
        if group is not None:
            groups.append(group)
        called = record.get("idx")
        index.append(len(index) if called is None else called)
    if not index:
        raise InputError(f"{split.shown} holds no rows")
    return Rows(texts, np.asarray(labels, np.float32), choices, groups, index)
