"""All texts of a suite's data, to find them elsewhere: every column but those of the labels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from crammed.errors import InputError
from crammed.files.hashes import json_hash, sha256
from crammed.formats.records import Record, decoded
from crammed.tasks.layouts import FoundSplit
from crammed.tasks.pairs import files_of_pairs, read_pairs
from crammed.tasks.read import folder_of, splits_in
from crammed.tasks.task import Task, load_suite


def texts_of(suite: str, data: str) -> Iterator[str]:
    """Every text in the training, scored and test splits of a suite, repeated ones too.

    A text is a string in a column, or one of a list of them; the words of a task of kind tokens
    are one text.

    Args:
        suite: a built-in suite, a YAML file of tasks, or ``blimp``.
        data: folder of the tasks, or ``hub``; for ``blimp`` a file or folder of sentence pairs.

    Raises:
        InputError: there is no such suite or no data, or it is damaged; the message names the file
            and the line or row.
    """
    if suite == "blimp":
        for pair in read_pairs(Path(data)):
            yield from (pair.good, pair.bad)
        return
    for split, tasks in _splits(suite, data):
        labels = {column for task in tasks for column in task.label}
        words = {task.text[0] for task in tasks if task.kind == "tokens"}
        for _, record in split.records():
            yield from _texts(record, labels, words)


def digest_of(suite: str, data: str) -> str:
    """A hash of what determines the texts of a suite.

    Raises:
        InputError: there is no such suite or no data.
    """
    if suite == "blimp":
        return json_hash([sha256(file) for file in files_of_pairs(Path(data))])
    splits = _splits(suite, data)
    columns = [[(task.kind, task.text, task.label) for task in tasks] for _, tasks in splits]
    return json_hash([columns, [split.digest() for split, _ in splits]])


def _splits(suite: str, data: str) -> list[tuple[FoundSplit, list[Task]]]:
    if suite == "heldout":
        raise InputError("suite heldout is text to hold out: name it with --heldout instead")
    return splits_in(load_suite(suite), folder_of(data))


def _texts(record: Record, labels: Collection[str], words: Collection[str]) -> Iterator[str]:
    for column, value in record.items():
        if column not in labels:
            listed = value if isinstance(value, list) else [value]
            texts = [each for each in map(decoded, listed) if isinstance(each, str)]
            yield from [" ".join(texts)] if column in words else texts
