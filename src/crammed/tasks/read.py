"""Reads the splits of a task as rows.

What is missing or wrong is an `InputError`, whose message names the file and the line or row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from crammed.errors import InputError
from crammed.files.folders import expanded
from crammed.formats.records import Record
from crammed.keys import key
from crammed.tasks.checks import (
    check_answers,
    check_folds,
    check_metrics,
    check_scored,
    check_training,
    in_32_bits,
)
from crammed.tasks.columns import TaskColumns, column, identifier
from crammed.tasks.labels import in_order, is_unlabelled, is_untagged, list_of, name_of
from crammed.tasks.layouts import FolderData, FoundSplit, SuiteData, open_data, rows_of
from crammed.tasks.rows import Rows, TaskData, Texts
from crammed.tasks.task import MOST_LABELS, PAIRS, SplitSpec, Suite, Task

Placed = Iterable[tuple[str, Record]]
"""Records with their places, for messages."""
Place = tuple[tuple[str, ...], str]
"""The folders that may hold a split, and its name."""


def folder_of(data: str) -> Path | None:
    """The folder of tasks that was named; None for ``hub``."""
    return None if data == "hub" else expanded(data)


def tasks_in(suite: Suite, data: Path | None) -> list[str]:
    """Names of the suite's tasks whose training split exists, or whose folder is on the hub.

    Of kind minimal-pairs, which has none, those with a split that is scored.

    Raises:
        InputError: there is none, or `data` is not a folder.
    """
    if data is None:
        there = [name for name, task in suite.tasks.items() if suite.on_hub(task.folders)]
        return there or list(suite.tasks)
    if not (names := _there(suite, data)):
        raise _no_tasks(suite, data)
    return names


def _there(suite: Suite, data: Path) -> list[str]:
    opened = open_data(suite, data)
    return [n for n, task in suite.tasks.items() if any(opened.find(*p) for p in _needed(task))]


def all_tasks(suite: Suite, data: Path | None, say: Callable[[str], None] | None) -> list[str]:
    """As `tasks_in`, for commands that take all tasks: a folder without its split is a mistake.

    Args:
        say: takes a line for each task with such a folder, which is left out; None, for a suite of
            the user's own, refuses it, as is done where no task is left.

    Raises:
        InputError: as `tasks_in` does, or a task is refused.
    """
    if data is None:
        return tasks_in(suite, data)
    there, root = _there(suite, data), FolderData(data)
    for task in (task for name, task in suite.tasks.items() if name not in there):
        if (place := next((p for p in _needed(task) if root.has_folder(p[0])), None)) is None:
            continue
        missing = root.missing(*place)
        if say is None or not there:
            mend = "rename its file, or remove the folder to leave the task out"
            raise InputError(f"task {task.name}: {missing}; {mend}")
        say(f"note  task {task.name} is left out: {missing}")
    return there or tasks_in(suite, data)


def _needed(task: Task) -> list[Place]:
    """The splits of which a task needs one: the training split or, of minimal-pairs, the scored."""
    if task.kind == PAIRS:
        return [_place(task, spec) for spec in task.numbers.values()]
    return [(task.folders, task.train)]


def splits_in(suite: Suite, data: Path | None) -> list[tuple[FoundSplit, list[Task]]]:
    """All existing splits of the suite's tasks, training, scored and test, each with its tasks.

    Raises:
        InputError: there is none, or `data` is not a folder.
    """
    opened = open_data(suite, data)
    places: dict[Place, list[Task]] = {}
    for task in suite.tasks.values():
        specs = (SplitSpec(split=task.train), *task.numbers.values(), *task.test.values())
        for place in dict.fromkeys(_place(task, spec) for spec in specs):
            places.setdefault(place, []).append(task)
    splits = [(split, of) for place, of in places.items() if (split := opened.find(*place))]
    if not splits:
        raise _no_tasks(suite, data)
    return splits


def training_splits(suite: Suite, data: Path | None) -> dict[str, FoundSplit]:
    """The training splits that exist, by task; nothing is fine-tuned on kind minimal-pairs.

    Raises:
        InputError: there is none, `data` is not a folder, or one has the rows of a split that a
            task of the suite is scored or tested on.
    """
    opened, tasks = open_data(suite, data), suite.tasks.values()
    tuned = [task for task in tasks if task.kind != PAIRS]
    if not tuned:
        raise InputError(f"suite {suite.name} has no task to learn texts from: all are {PAIRS}")
    splits = {t.name: split for t in tuned if (split := opened.find(t.folders, t.train))}
    if not splits:
        raise _no_tasks(suite, data)
    scored = [_existing(opened, task, {**task.numbers, **task.test}) for task in tasks]
    of_scored = {rows_of(split) for each in scored for split in each.values()}
    for name, split in splits.items():
        if rows_of(split) in of_scored:
            raise InputError(
                f"{split.shown} is trained on and scored: leave task {name} out of the suite whose "
                "texts are learned from"
            )
    return splits


def training_texts(task: Task, data: Path | None, suite: Suite) -> Iterator[str]:
    """The texts of the rows that a task is fine-tuned on, as a model sees them, without labels.

    A row repeats no text; rows may.

    Raises:
        InputError: they are missing or damaged; the message names the file and the line or row.
    """
    train = _find(open_data(suite, data), task, SplitSpec(split=task.train))
    columns = TaskColumns(task, task.text, ())
    for place, record in _WithText(_sampled(train, task), columns):
        with _at(place):
            sequences = columns.texts(record)
        if task.kind == "tokens":
            yield " ".join(sequences[0])
        else:
            yield from dict.fromkeys(text for texts in sequences for text in texts)


def _no_tasks(suite: Suite, data: Path | None) -> InputError:
    folders = ", ".join(" or ".join(task.folders) for task in suite.tasks.values())
    return InputError(
        f"{data or 'the hub'} holds no task of suite {suite.name}, which should be in folders "
        f"{folders}"
    )


def read_task(task: Task, data: Path | None, suite: Suite, *, test: bool = True) -> TaskData:
    """Read a task's training split, its scored splits and, with `test`, its unlabelled ones.

    Args:
        data: folder of the suite's data; None for the hub.

    Raises:
        InputError: something is missing or wrong; the message names the file and the line or row.
    """
    if task.kind == PAIRS:
        raise InputError(f"task {task.name}: kind {PAIRS} is not fine-tuned: use crammed evaluate")
    opened = open_data(suite, data)
    train = _find(opened, task, SplitSpec(split=task.train))
    scored = _scored(opened, task)
    tests = _existing(opened, task, task.test) if test else {}
    names = _class_names(task, train)
    check_metrics(task, names)
    rows = read_rows(train.shown, _sampled(train, task), TaskColumns(task, task.text, names))
    check_training(train.shown, task, rows, names)

    def read(split: FoundSplit, spec: SplitSpec, *, labelled: bool) -> Rows:
        columns = TaskColumns(task, spec.text or task.text, names)
        placed = split.records()
        return read_rows(split.shown, placed, columns, choices=rows.choices, labelled=labelled)

    if task.folds:
        check_folds(train.shown, task.folds, rows)
        scored_rows = dict.fromkeys(scored, rows)
    else:
        scored_rows = {n: read(each, task.numbers[n], labelled=True) for n, each in scored.items()}
    for name, split in scored.items():
        metrics = task.numbers[name].metric or task.metric
        check_scored(split.shown, task, metrics, scored_rows[name], names)
    test_rows = {n: read(each, task.test[n], labelled=False) for n, each in tests.items()}
    check_answers(test_rows, names)
    told = [split.digest() for split in (train, *scored.values())]
    told += [f"{task.most_rows} rows"] * bool(task.most_rows)
    told += [f"{task.folds} folds"] * bool(task.folds)
    return TaskData(
        train=rows,
        scored=scored_rows,
        test=test_rows,
        labels=names,
        sha256=_sha256("".join(f"{line}\n" for line in told)),
        test_sha256={
            name: _sha256(split.digest() + " with blank lines" * _may_have_blank_lines(split))
            for name, split in tests.items()
        },
        folds=task.folds or 0,
    )


def _may_have_blank_lines(split: FoundSplit) -> bool:
    """Whether an only column has an empty cell: earlier versions left out those of blank lines."""
    records = (record for _, record in split.records())
    first: Record = next(records, {})
    only = chain([first], records) if len(first) == 1 else ()
    return any("" in record.values() for record in only)


def read_pairs_of(task: Task, data: Path | None, suite: Suite) -> dict[str, Rows]:
    """The pairs of sentences of a task of kind minimal-pairs, by name of the score.

    Raises:
        InputError: something is missing or wrong; the message names the file and the line or row.
    """
    found = {}
    for name, split in _scored(open_data(suite, data), task).items():
        columns = TaskColumns(task, task.numbers[name].text or task.text, ())
        found[name] = read_rows(split.shown, split.records(), columns)
    return found


def _sampled(train: FoundSplit, task: Task) -> Iterator[tuple[str, Record]]:
    """The records of the training split that the task uses, in their order."""
    if (most := task.most_rows) is None:
        return train.records()
    count = sum(1 for _ in train.records())
    draw = np.random.Generator(np.random.PCG64(key(0, "most_rows")))
    used = np.isin(np.arange(count), draw.permutation(count)[:most])
    return compress(train.records(), used)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _place(task: Task, spec: SplitSpec) -> Place:
    return ((spec.folder,) if spec.folder else task.folders), spec.split


def _existing(data: SuiteData, task: Task, specs: Mapping[str, SplitSpec]) -> dict[str, FoundSplit]:
    """The splits that exist, by name."""
    found = {name: data.find(*_place(task, spec)) for name, spec in specs.items()}
    return {name: split for name, split in found.items() if split is not None}


def _scored(data: SuiteData, task: Task) -> dict[str, FoundSplit]:
    """The scored splits that exist, of which there must be one."""
    found = _existing(data, task, task.numbers)
    if not found:
        _find(data, task, next(iter(task.numbers.values())))
    return found


def _find(data: SuiteData, task: Task, spec: SplitSpec) -> FoundSplit:
    """A split that must exist."""
    place = _place(task, spec)
    if (split := data.find(*place)) is None:
        raise InputError(f"task {task.name}: {data.missing(*place)}")
    return split


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Turn a ValueError into an InputError that names the location of the record."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error


@dataclass
class _WithText:
    """The records that have text, with their places.

    Iterating over them raises an InputError that names the first record if none has text.

    Attributes:
        skipped: how many records had none so far.
    """

    placed: Placed
    columns: TaskColumns
    skipped: int = 0

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        first, found = None, False
        for place, record in self.placed:
            if self.columns.has_text(record):
                found = True
                yield place, record
            else:
                self.skipped += 1
                first = first or (place, record)
        if first is not None and not found:
            with _at(f"no row has text: {first[0]}"):
                self.columns.texts(first[1])


def _class_names(task: Task, train: FoundSplit) -> tuple[str, ...]:
    """Names of the classes, from the task or else from the labels of the training split."""
    if task.kind == "regression":
        return ()
    if task.kind == "choice":
        return _choice_names(task, train)
    if task.labels or len(task.label) > 1:
        return task.labels or task.label
    names: dict[str, None] = {}
    for place, record in _WithText(train.records(), TaskColumns(task, task.text, ())):
        with _at(place):
            value = column(record, task.label[0])
            if task.kind == "multi-label":
                labels = [each for each in list_of(value, ",") if not is_unlabelled(each)]
            elif task.kind == "tokens":
                labels = [tag for tag in list_of(value, None) if not is_untagged(tag)]
            else:
                labels = [] if is_unlabelled(value) else [value]
            names |= dict.fromkeys(map(name_of, labels))
            if len(names) > MOST_LABELS:
                raise ValueError(f"column {task.label[0]!r} has more than {MOST_LABELS:,} labels")
    return in_order(names)


def _choice_names(task: Task, train: FoundSplit) -> tuple[str, ...]:
    columns = TaskColumns(task, task.text, ())
    for place, record in _WithText(train.records(), columns):
        with _at(place):
            count = len(columns.answers(record))
            if task.labels and len(task.labels) != count:
                raise ValueError(f"{count} answers, but the task names {len(task.labels)} labels")
        return task.labels or tuple(map(str, range(count)))
    raise InputError(f"{train.shown} holds no rows")


def read_rows(
    shown: str,
    placed: Placed,
    columns: TaskColumns,
    *,
    choices: int = 0,
    labelled: bool = True,
) -> Rows:
    """The rows of one split, or of a part of one.

    Args:
        shown: its name in messages.
        placed: its records with their places.
        choices: sequences that every row must have; 0 means as many as the first row has.
        labelled: whether to read labels and groups, and to skip rows without text; if not, labels
            are NaN whatever the data contains, since every row needs an answer.

    Raises:
        InputError: there are none, or one does not fit the task.
    """
    texts: list[Texts] = []
    labels: list[Any] = []
    groups: list[str] = []
    index: list[Any] = []
    with_text = _WithText(placed, columns)
    for place, record in with_text if labelled else placed:
        with _at(place):
            sequences = columns.texts(record)
            choices = choices or len(sequences)
            if len(sequences) != choices:
                raise ValueError(f"{len(sequences)} answers, but other rows have {choices}")
            labels += columns.labels(record, sequences) if labelled else columns.no_labels()
            group = columns.group(record) if labelled else None
        texts += sequences
        if group is not None:
            groups.append(group)
        index.append(identifier(record, len(index)))
    if not index:
        raise InputError(f"{shown} holds no rows")
    positive = columns.positive if labelled else 1
    values = in_32_bits(shown, labels)
    return Rows(texts, values, choices, groups, index, positive, with_text.skipped)
