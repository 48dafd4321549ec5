"""Takes texts, labels and group out of one record, from the columns that a task names.

Functions here raise a ValueError that says what is wrong; `crammed.tasks.read` adds the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from crammed.formats.records import Record, decoded, shown_names, without_surrogates
from crammed.hints import did_you_mean
from crammed.quantity import counted
from crammed.tasks.labels import (
    QUOTED,
    class_number,
    flag_of,
    is_untagged,
    list_of,
    name_of,
    value_of,
)
from crammed.tasks.rows import Texts
from crammed.tasks.task import PAIRS, Task, pieces


class TaskColumns:
    """The columns of a task in one split, whose records may name them differently.

    Args:
        text: columns or templates of the texts, the split's own or the task's.
        names: names of the classes in the order of their numbers.
    """

    def __init__(self, task: Task, text: Sequence[str], names: Sequence[str]) -> None:
        self._task = task
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names)}
        self._columns = text
        self._text = [_filler(each) for each in text]
        templates = (*text, *task.choices, *((task.choice_text,) if task.choices else ()))
        read = {name for template in templates for _, name in pieces(template)}
        self._of_text = {name for name in read if name not in (None, "choice")}
        self._choices = [_filler(each) for each in task.choices]
        self._choice_text = _filler(task.choice_text)
        self._group = None if task.group is None else _filler(task.group, number=True)

    @property
    def positive(self) -> int:
        """Number of the class whose F1 metrics such as f1 are."""
        positive = self._task.positive
        return 1 if positive is None else self._names.index(positive)

    def has_text(self, record: Record) -> bool:
        """Whether every column of the texts is there and not null."""
        return all(record.get(name) is not None for name in self._of_text)

    def texts(self, record: Record) -> list[Texts]:
        """The texts of one sequence, or, for kind choice, of one sequence per answer."""
        if self._task.kind == "tokens":
            return [_words(record, self._columns[0])]
        filled = tuple(fill(record) for fill in self._text)
        if self._task.kind != "choice":
            return [filled]
        answers = self.answers(record)
        return [(*filled, self._choice_text({**record, "choice": each})) for each in answers]

    def answers(self, record: Record) -> list[str]:
        """The answers to choose from, two or more."""
        if len(self._choices) > 1:
            return [fill(record) for fill in self._choices]
        (name,) = self._task.choices
        answers = column(record, name)
        if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
            raise ValueError(f"column {name!r} holds {_kind(answers)}, not a list of texts")
        if len(answers) < 2:
            raise ValueError(f"column {name!r} holds fewer than two answers")
        return answers

    def group(self, record: Record) -> str | None:
        """The key of the row's group; None if the task has no groups."""
        return None if self._group is None else self._group(record)

    def labels(self, record: Record, texts: Sequence[Texts]) -> list[Any]:
        """A list of the row's label; for kind tokens, the labels of its words."""
        task = self._task
        if task.kind == PAIRS:
            _check_pair(*texts[0])
            return self.no_labels()
        if len(task.label) > 1:
            return [[_flag(record, name) for name in task.label]]
        value = column(record, task.label[0])
        if task.kind == "regression":
            return [value_of(value)]
        if task.kind == "tokens":
            return self._tags(value, texts[0])
        if task.kind == "multi-label":
            numbers = {self._number(each) for each in list_of(value, ",")}
            return [[number in numbers for number in range(len(self._names))]]
        return [self._number(value)]

    def _number(self, value: Any) -> int:
        """As `class_number`, which looks through all names, as there may be many."""
        number = self._numbers.get(name_of(value)) if isinstance(value, str | int) else None
        if number is None:
            number = class_number(value, self._names, ordered=bool(self._task.labels))
        return number

    def no_labels(self) -> list[Any]:
        """The placeholder for the label in an unlabelled split, and of kind minimal-pairs."""
        return [[math.nan] * len(self._names) if self._task.kind == "multi-label" else math.nan]

    def _tags(self, value: Any, words: Texts) -> list[int]:
        tags = list_of(value, None)
        if len(tags) != len(words):
            raise ValueError(f"{counted(len(words), 'word')}, but {counted(len(tags), 'label')}")
        names = self._names
        return [-1 if is_untagged(tag, names) else self._number(tag) for tag in tags]


def column(record: Record, name: str) -> Any:
    """The value of a column.

    Raises:
        ValueError: there is no such column; the message lists the existing ones.
    """
    if name not in record:
        names = [str(each) for each in record]
        hint = did_you_mean(name, names).rstrip() or "is this the data of another task?"
        raise ValueError(f"no column {name!r} (it has: {shown_names(names)}); {hint}")
    return decoded(record[name])


def identifier(record: Record, number: int) -> Any:
    """The row's own identifier, in its column ``idx``, or its number if it has none."""
    found = decoded(record.get("idx"))
    if isinstance(found, str):
        return without_surrogates(found)
    return number if found is None else found


def _check_pair(good: str, bad: str) -> None:
    """Check that one of two sentences can be likelier."""
    if good == bad:
        raise ValueError("both sentences are the same: correct or remove the row")
    if not (good.strip() and bad.strip()):
        raise ValueError("one of the sentences is empty: correct or remove the row")


def _filler(template: str, *, number: bool = False) -> Callable[[Record], str]:
    """A function from a record to the text of its column, or to the filled-in template.

    With `number`, a column by itself may hold whole numbers, as one in a template may.
    """
    if "{" not in template and "}" not in template:
        return lambda record: _text(record, template, number=number)
    parts = pieces(template)

    def fill(record: Record) -> str:
        return "".join(
            literal if name is None else literal + _text(record, name, number=True)
            for literal, name in parts
        )

    return fill


def _text(record: Record, name: str, *, number: bool = False) -> str:
    value = column(record, name)
    if number and isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"column {name!r} holds {_kind(value)}, not text")
    return value if value.isascii() else without_surrogates(value)


def _words(record: Record, name: str) -> Texts:
    value = column(record, name)
    words = list_of(value, None, QUOTED) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"column {name!r} holds {_kind(value)}, not a list of words")
    if not words:
        raise ValueError(f"column {name!r} holds no words")
    return tuple(word if word.isascii() else without_surrogates(word) for word in words)


def _flag(record: Record, name: str) -> bool:
    try:
        return flag_of(column(record, name))
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}" if name in record else str(error)) from None


def _kind(value: Any) -> str:
    names = {int: "number", float: "number", dict: "object"}
    if value is None:
        return "nothing"
    name = names.get(type(value), type(value).__name__)
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"
