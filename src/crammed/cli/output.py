"""How verbs print their results: as labelled lines for people, or as JSON for scripts."""

from __future__ import annotations

import json
from typing import Any

import typer

from crammed.terminal.quiet import visible


def print_result(values: dict[str, Any], as_json: bool, lines: list[tuple[str, str]]) -> None:
    """Print a result on standard output.

    Args:
        values: the result, which is printed as one JSON object if `as_json`.
        lines: the result for people: labels, with one or more lines of text each.
    """
    if as_json:
        typer.echo(json.dumps(values, allow_nan=False))
        return
    width = max((len(label) for label, _ in lines), default=0)
    for label, text in lines:
        first, *rest = visible(text).splitlines() or [""]
        typer.echo(f"{visible(label):<{width}}  {first}")
        for line in rest:
            typer.echo(" " * (width + 2) + line)


def plain(value: Any) -> str:
    """A value as text without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
