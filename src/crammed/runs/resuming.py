"""Finds the run that a command continues, and settles what it goes on with.

There is one rule. A repeated command continues a run if every word typed agrees with it: an
override, an option that sets a value, the name of a recipe, ``--fit``. What is not typed is the
run's own, even if the recipe has changed since.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from crammed.config import RunConfig
from crammed.config.kinds import flat, overlaid
from crammed.config.yamlfile import validated
from crammed.errors import InputError
from crammed.rules.choosing import Asked, Choice
from crammed.rules.recipe import FOLLOWS, ask, refuse_idle, typed
from crammed.rules.sizing import with_values
from crammed.runs.directory import (
    another_run,
    differences,
    differing,
    has_begun,
    read_choice,
    read_config,
    same_but_for,
    takes_another,
)

VOCABULARY = "tokenizer.vocab_size"


def asked_in(
    path: Path | None,
    recipe: str | None,
    overrides: Sequence[str],
    fixed: Mapping[str, Any],
    *,
    fit: bool = False,
) -> Asked:
    """Read words as `ask` does, and go on with the run in `path` if they agree with it.

    Args:
        path: the folder to train in, if it is known: a run there may have begun with words that
            today's recipe does not accept.

    Raises:
        InputError: as `ask`, `refuse_idle` and `as_begun`.
    """
    try:
        asked = ask(recipe, overrides, fixed, fit=fit)
        refuse_idle(asked)
    except InputError:
        if path is None or fit or not (path / "config.json").exists():
            raise
        found = read_config(path)
        given = typed(recipe, overrides, fixed)
        if disagreements(found, given):
            raise
        asked = Asked(_with_typed(_without_code(found), given), typed=given)
    return asked if path is None else as_begun(path, asked)


def as_begun(path: Path, asked: Asked) -> Asked:
    """What is asked for, as the run in `path` has it; nothing is open if it has chosen.

    It chooses again if it chose on a busy machine and has done no update. A folder without
    training that the words do not agree with may become another run, with the corpus it has.

    Raises:
        InputError: the run was begun with other words, or one of its files is damaged.
    """
    if not (path / "config.json").exists():
        return asked
    found, choice = read_config(path), read_choice(path)
    prepared = (path / "corpus" / "manifest.json").exists()
    if prepared:
        asked = _in_the_vocabulary_of(found, asked)
    different = disagreements(found, asked.typed)
    if choice is not None and FOLLOWS in asked.typed and not {*asked.open} <= {*choice.follows}:
        there, here = (", ".join(keys) or "nothing" for keys in (choice.follows, asked.open))
        different.append(f"{FOLLOWS}: {there} there, {here} here")
    if different:
        if takes_another(path, found, asked.config):
            return asked
        raise another_run(path, different)
    own = _with_typed(found, asked.typed)
    if found.corpus is None and not prepared:
        _refuse_code(path, found, asked.config)
    if choice is None and found.corpus is None and not prepared:
        return replace(asked, config=own)  # it ended before it chose
    if choice is not None and choice.busy and not has_begun(path):
        again = Asked(own, choice.follows, asked.typed, asked.vocabulary)
        return _in_the_vocabulary_of(found, again) if prepared else again
    changed = _changed(found, choice, asked)
    return Asked(own, (), asked.typed, asked.vocabulary, choice or Choice(), changed)


def _without_code(found: RunConfig) -> RunConfig:
    """A configuration without a function of the user's own, and without a pipeline."""
    clean = found.data.clean.model_copy(update={"function": None, "entities": None})
    return found.model_copy(update={"data": found.data.model_copy(update={"clean": clean})})


def _refuse_code(path: Path, found: RunConfig, asked: RunConfig) -> None:
    """Refuse to run code that a folder names, and neither the command nor its recipe."""
    for key, what in (("function", "function"), ("entities", "pipeline")):
        there, here = getattr(found.data.clean, key), getattr(asked.data.clean, key)
        if there is not None and there != here:
            raise InputError(
                f"{path} was begun with the {what} {there}, whose code would be run: if you trust "
                f"it, type data.clean.{key}={there}"
            )


def _with_typed(found: RunConfig, typed: Mapping[str, Any]) -> RunConfig:
    """A run's configuration with what is typed, and its budget as it is written there."""
    values = {key: value for key, value in typed.items() if key != FOLLOWS}
    own = validated(RunConfig, overlaid(found.model_dump(mode="json"), values, RunConfig))
    if own.budget.limit != found.budget.limit:
        return own
    return with_values(own, {"budget.limit": found.budget.limit})


def disagreements(found: RunConfig, typed: Mapping[str, Any]) -> list[str]:
    """``KEY: VALUE there, VALUE here`` for what is typed and differs from a run."""
    try:
        return differences(found, _with_typed(found, typed))
    except InputError:  # such as a key that the run's optimizer lacks
        there, here = flat(found.complete()), flat(typed)
        lacking = here.keys() - there.keys() - {FOLLOWS}
        keys = lacking or {key for key in here if str(here[key]) != str(there.get(key))}
        return [f"{key}: {there.get(key)} there, {here[key]} here" for key in sorted(keys)]


def _changed(found: RunConfig, choice: Choice | None, asked: Asked) -> tuple[str, ...]:
    """Where a run goes on with values that its recipe no longer sets."""
    if found.recipe != asked.config.recipe:  # which is not typed, and was then
        return ()
    typed = (choice.typed if choice is not None else None) or ()
    try:
        values = differing(found, asked.like(found)).items()
    except InputError:  # the recipe's other values contradict those that the budget decided
        return ()
    return tuple(f"{key} {was} -> {now}" for key, (was, now) in values if key not in typed)


def _in_the_vocabulary_of(found: RunConfig, asked: Asked) -> Asked:
    """What is asked for, with the vocabulary of a run whose corpus is prepared already."""
    if VOCABULARY not in asked.open:
        return asked
    config = with_values(asked.config, {VOCABULARY: found.tokenizer.vocab_size})
    return replace(asked, config=config, open=tuple(k for k in asked.open if k != VOCABULARY))


def default_out(asked: Asked, data_name: str, last: str) -> Path:
    """An unfinished run of what is asked for, or else a folder that does not exist yet.

    Its name is ``runs/RECIPE-DATA-DATE-NUMBER``. Nobody has named it, so it is never a link.

    Args:
        last: name of the file that only a finished run has.
    """
    data = re.sub(r"[^\w-]+", "-", data_name.split(".")[0]).strip("-") or "corpus"
    stem = f"{asked.config.recipe}-{data}"
    for path in sorted(Path("runs").glob(f"{glob.escape(stem)}-????????-*"), reverse=True):
        if not path.is_symlink() and not (path / last).exists() and _is_of(path, asked):
            return path
    today = f"{stem}-{datetime.now().strftime('%Y%m%d')}"
    number = 1
    while os.path.lexists(path := Path("runs") / f"{today}-{number:02d}"):
        number += 1
    return path


def _is_of(path: Path, asked: Asked) -> bool:
    """Whether the run in `path` was asked for by the same words, or by others to the same end."""
    try:
        found, choice = read_config(path), read_choice(path)
    except InputError:  # not a run, or one that this version cannot read
        return False
    if choice is not None and choice.typed == asked.keys:
        return not disagreements(found, asked.typed)
    if choice is not None and not set(asked.open) <= set(choice.follows):
        return False
    return same_but_for(asked.open, asked.config, found)
