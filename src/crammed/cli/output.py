"""How verbs print their results: as labelled lines for people, or as JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from crammed.terminal.quiet import one_line

Line = tuple[str, str | Sequence[str]]
"""A label with a line of text or several."""


def print_result(values: dict[str, Any], as_json: bool, lines: Sequence[Line]) -> None:
    """Print a result on standard output.

    Args:
        values: the result, which is printed as one JSON object if `as_json`.
        lines: the result for people.
    """
    if as_json:
        typer.echo(json.dumps(values, allow_nan=False))
        return
    width = max((len(label) for label, _ in lines), default=0)
    for label, text in lines:
        for line in [text] if isinstance(text, str) else text:
            typer.echo(f"{one_line(label):<{width}}  {one_line(line)}")
            label = ""


def plain(value: Any) -> str | list[str]:
    """A value as text without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return [*map(str, value)] if isinstance(value, list | tuple) else str(value)
