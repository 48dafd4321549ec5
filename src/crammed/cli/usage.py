"""Faults of the command line itself, in one line like every other error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import typer

from crammed.errors import InputError
from crammed.hints import did_you_mean

UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""What the command-line library raises for wrong options and arguments; it has changed its home."""


def in_one_line(error: Any, verb: str) -> str:
    """What is wrong, and where to read what to type instead.

    Args:
        error: a `UsageError`.
        verb: the verb that was typed, for errors that do not know it.
    """
    context, kind = error.ctx, type(error).__name__
    path = f"crammed {verb}" if context is None else str(context.command_path)
    message = str(error.format_message()).rstrip(".")
    see = f"see {path} --help"
    if kind == "NoSuchOption":
        known = [each for param in context.command.params for each in param.opts]
        hint = did_you_mean(error.option_name, known)
        return f"{path} has no option {error.option_name}: {hint}{see}"
    if found := re.match(r"No such command '(.*?)'", message):
        names = list(context.command.commands)
        hint = did_you_mean(found[1], names)
        return f"no command {found[1]!r}: {hint}choose one of {', '.join(names)}"
    if kind == "BadOptionUsage" and "does not take a value" in message:
        return f"{error.option_name} takes no value: leave out =...; {see}"
    if kind == "BadOptionUsage":
        return f"{error.option_name} needs a value: {see}"
    if kind == "MissingParameter":
        given = "" if error.param.param_type_name == "argument" else " VALUE"
        name = error.param.metavar if not given else error.param.opts[0]
        return f"{name or error.param.name.upper()} is missing: type {path} {name}{given}; {see}"
    if kind == "BadParameter" and error.param is not None:
        name = error.param.opts[0]
        return f"{name}: {error.message[0].lower()}{error.message[1:].rstrip('.')}; {see}"
    if found := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"{path} does not take {found[1]}: leave it out, or {see}"
    return f"{message[0].lower()}{message[1:]}; {see}"


def refuse_spaces(arguments: list[str]) -> None:
    """Refuse ``KEY = VALUE``, which a shell takes for several words.

    Raises:
        InputError: there is a space at an equals sign.
    """
    for place, word in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        after = arguments[place + 1] if place + 1 < len(arguments) else ""
        if word.startswith("=") and not before.startswith("-"):
            key, value = before.rstrip("="), word[1:] or after
        elif re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)*=", word) and _is_value(after):
            key, value = word[:-1], after
        else:
            continue
        typed = f"{key or 'KEY'}={value or 'VALUE'}"
        raise InputError(f"spaces around =: write {typed} as one word, in quotes if it has spaces")


def _is_value(word: str) -> bool:
    """Whether a word can only be a value: not an option, an override or a recipe."""
    from crammed.rules.recipe import recipe_names

    if not word or word.startswith("-") or "=" in word:
        return False
    return word not in recipe_names() and Path(word).suffix not in (".yaml", ".yml")
