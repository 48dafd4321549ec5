"""Turns the label in a record into a class number or a value.

Functions here raise a ValueError that says what is wrong; `crammed.tasks.read` adds the row.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from crammed.config.yamlfile import shown
from crammed.formats.records import shown_names, without_surrogates

UNLABELLED = (-1, "-1", None, "")
"""Labels of rows without a label, as in test splits."""
UNTAGGED = (-1, -100, "-1", "-100", None, "")
"""Tags of words that are ignored in training and scoring; tables hold them as text."""
MOST_VALUE = 3.4e38  # regression labels are kept in 32 bits
_LISTED = re.compile(r"""\[(\s*|['"\[].*|[-+\d.\s,eE]+|[^\[\]]*,[^\[\]]*)\]""", re.DOTALL)
"""A list as programs print it, but not a name such as ``[PAD]``, nor several in a row."""
QUOTED = re.compile(r"""\[['"].*['"]\]""", re.DOTALL)
"""A list of texts as programs print it, but not a sentence in brackets."""
_IN_ORDER = "; if it is the number of one, list them in `labels` in the order of their numbers"


def class_number(value: Any, names: Sequence[str], *, ordered: bool = True) -> int:
    """The position of a label among the names, by name or, unless names are numbers, by number.

    Args:
        ordered: whether the order of the names was given. If it is only alphabetical, no position
            is sure but those of false and true.
    """
    if is_unlabelled(value, names):
        minus_one = not is_unlabelled(value, ("-1",))
        raise _missing(value, "; if -1 is a class, name all classes in `labels`" * minus_one)
    name = name_of(value)
    if name in names:
        return names.index(name)
    ordered = ordered or [each.lower() for each in names] in (["0", "1"], ["false", "true"])
    if isinstance(value, bool):
        return _of_bool(value, names, ordered)
    if is_number(name) and not any(map(is_number, names)) and 0 <= int(name) < len(names):
        if not ordered:
            raise _none_of(value, names, _IN_ORDER)
        return int(name)
    raise _none_of(value, names)


def _missing(value: Any, hint: str = "") -> ValueError:
    return ValueError(
        f"label {shown(value)} means that the row has none, but this split needs labels{hint}"
    )


def _of_bool(value: bool, names: Sequence[str], ordered: bool) -> int:
    """The number of a truth value: by names such as True and False, or 0 or 1 of two classes."""
    matches = [place for place, name in enumerate(names) if name.lower() == str(value).lower()]
    if not matches and (len(names) != 2 or not ordered):
        raise _none_of(value, names, _IN_ORDER * (len(names) == 2))
    return matches[0] if matches else int(value)


def _none_of(value: Any, names: Sequence[str], hint: str = "") -> ValueError:
    return ValueError(f"label {shown(value)} is not one of {listed(names)}{hint}")


def listed(names: Sequence[str]) -> str:
    """The names for a message; of many, the first ones and the last."""
    quoted = [name if name == name.strip() else repr(name) for name in names]
    return shown_names(quoted if len(quoted) <= 12 else [*quoted[:10], "...", quoted[-1]])


def is_unlabelled(value: Any, names: Sequence[str] = ()) -> bool:
    """Whether a label means that the row has none; -1 does not if a class has that name."""
    return (isinstance(value, float) and math.isnan(value)) or _is_mark(value, UNLABELLED, names)


def is_untagged(tag: Any, names: Sequence[str] = ()) -> bool:
    """Whether a tag means that the word has none; -1 does not if a class has that name."""
    return _is_mark(tag, UNTAGGED, names)


def _is_mark(value: Any, marks: Sequence[Any], names: Sequence[str]) -> bool:
    mark = name_of(value) if isinstance(value, str) else value  # "-1.0" as -1.0
    return mark in marks and (mark is None or name_of(mark) not in names)


def name_of(value: Any) -> str:
    """A label as a class name: ``entailment``; ``true`` for True; ``3`` for 3, 3.0 and "3.0"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        raise ValueError(f"label {shown(value)} is neither a name nor a whole number")
    text = without_surrogates(str(value))
    number, dot, zeros = text.partition(".")
    return number if dot and is_number(number) and not zeros.strip("0") else text


def is_number(name: str) -> bool:
    """Whether a name is a whole number, short enough for Python to convert in any case."""
    return name.isascii() and name.removeprefix("-").isdigit() and len(name) <= 640


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, sorted; numerically if all are numbers."""
    distinct = sorted(set(names))  # also settles the order of 1 and 01
    return tuple(sorted(distinct, key=int) if all(map(is_number, distinct)) else distinct)


def value_of(value: Any) -> float:
    """The value of a regression label, a finite number; -1 is an ordinary value."""
    if is_unlabelled(value, ("-1",)):
        raise _missing(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"label {shown(value)} is not a number") from None
    if isinstance(value, bool) or not abs(number) <= MOST_VALUE:
        raise ValueError(f"label {shown(value)} is not a finite number")
    return number


def list_of(value: Any, separator: str | None, listed: re.Pattern[str] = _LISTED) -> list[Any]:
    """A list unchanged, or a text split at `separator`; None splits at any white space.

    Args:
        listed: matches texts that are not split, but have to be lists in JSON.
    """
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(separator)]
        parts = [part for part in parts if part]
        of_words = parts[:1] == ["["]  # tags, of a sentence in brackets
        return parts if of_words or not listed.fullmatch(value.strip()) else _in_json(value)
    if is_unlabelled(value):
        raise _missing(value)
    if not isinstance(value, list):
        none = ", or [] for none" * (separator is not None)
        raise ValueError(f'label {shown(value)} is not a list: write ["a", "b"]{none}')
    return value


def _in_json(text: str) -> list[Any]:
    try:
        found: list[Any] = json.loads(text)
    except (ValueError, RecursionError):
        hint = "write JSON lines, or the list as JSON"
        raise ValueError(f"{text[:80]!r} looks like a list that Python printed: {hint}") from None
    return found


def flag_of(value: Any) -> bool:
    """The value of a column of 0/1 for one label."""
    flag = value.strip().lower() if isinstance(value, str) else value
    if flag in (True, "1", "1.0", "true"):  # also the numbers 1 and 1.0
        return True
    if flag in (False, "0", "0.0", "false"):
        return False
    raise ValueError(f"{shown(value)} is neither 0 nor 1")
