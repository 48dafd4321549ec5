"""How verbs print their results: as labelled lines for people, or as JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from crammed.terminal.quiet import one_line
from crammed.terminal.wrapping import hanging, width_of

if TYPE_CHECKING:
    from crammed.interface.lines import Line
    from crammed.interface.results import Run


def print_run(run: Run, as_json: bool) -> None:
    """Print the result of a run."""
    from crammed.interface.lines import next_line, run_lines

    values = run.result
    print_result(values, as_json, [*run_lines(values), next_line(values)])


def print_result(values: dict[str, Any], as_json: bool, lines: Sequence[Line]) -> None:
    """Print a result on standard output.

    Args:
        values: the result, which is printed as one JSON object if `as_json`.
        lines: the result for people.
    """
    if as_json:
        typer.echo(json.dumps(values, allow_nan=False))
        return
    width, most = max((len(label) for label, _ in lines), default=0), width_of(sys.stdout)
    for label, text in lines:
        edge = None if label == "next" else most  # a command stays in one piece, to be copied
        for line in [text] if isinstance(text, str) else text:
            typer.echo(hanging(f"{one_line(label):<{width}}  ", one_line(line), edge))
            label = ""


def plain(value: Any) -> str | list[str]:
    """A value as text without brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return [*map(str, value)] if isinstance(value, list | tuple) else str(value)
