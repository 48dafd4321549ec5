"""Reads the logs of a run, `metrics.jsonl` and `events.jsonl`, even if a crash cut them short."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files.regular import open_to_read

_GOING_BACK = ("resume", "back")
"""Events that undo what came after the update that they name."""
ANEW = "anew"
"""The event of a run that takes another configuration, before its first update."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; lines that a crash cut short are skipped.

    Raises:
        InputError: the file cannot be read, or a line holds something other than an object.
    """
    if not path.exists():
        return
    try:
        with open_to_read(path) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            raise _unexpected(path, number, "is not an object")
        yield record


def read_metrics(path: Path, *numbers: str) -> list[dict[str, Any]]:
    """The log points of the run in `path`, without those that a crash undid.

    Args:
        numbers: what every log point must have, besides ``update``.

    Raises:
        InputError: a log point lacks one of these, or has no number there.
    """
    file, kept = path / "metrics.jsonl", list[dict[str, Any]]()
    for place, record in enumerate(read_lines(file), 1):
        _check_numbers(record, ("update", *numbers), file, place)
        while kept and kept[-1]["update"] >= record["update"]:
            kept.pop()
        kept.append(record)
    return kept


def read_events(path: Path, **numbers: tuple[str, ...]) -> list[dict[str, Any]]:
    """The events of the run in `path`; of a configuration that it had before, only the stages.

    Args:
        numbers: what events of that name must have.

    Raises:
        InputError: an event lacks one of these, or has no number there.
    """
    file, events = path / "events.jsonl", list[dict[str, Any]]()
    for place, event in enumerate(read_lines(file), 1):
        if not isinstance(event.get("event"), str):
            raise _unexpected(file, place, "does not name an event")
        _check_numbers(event, numbers.get(event["event"], ()), file, place)
        if event["event"] == ANEW:
            events = [each for each in events if each["event"] == "stage"]
        events.append(event)
    return events


def heldout_losses(
    events: Iterable[dict[str, Any]], before: float = math.inf
) -> list[dict[str, Any]]:
    """The held-out losses among the events of a run, without those that were undone.

    Args:
        before: leaves out what was measured at this update or later. With the number of updates of
            the whole training, these are the losses during training: the one after it is on more
            rows, and in the summary.
    """
    kept = list[dict[str, Any]]()
    for event in events:
        measured, update = event["event"] == "heldout", event.get("update")
        if not (measured or event["event"] in _GOING_BACK) or not isinstance(update, int | float):
            continue
        while kept and kept[-1]["update"] >= update + (not measured):
            kept.pop()
        if measured:
            kept.append(event)
    return [event for event in kept if event["update"] < before]


def _check_numbers(record: Mapping[str, Any], names: Iterable[str], file: Path, place: int) -> None:
    """Raise an `InputError` unless the record has a finite number of each of these names."""
    for name in names:
        value: Any = record.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and abs(value) <= sys.float_info.max):
            raise _unexpected(file, place, f"has no number {name!r}")


def _unexpected(file: Path, place: int, fault: str) -> InputError:
    return InputError(
        f"{file} is damaged: record {place} {fault}; restore the file, or delete that line"
    )
