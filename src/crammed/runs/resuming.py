"""Finds the run that a command continues, and what was chosen when that run began."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.rules.choosing import Asked, Choice, Chosen
from crammed.rules.recipe import EARLIER, ask, formerly
from crammed.runs.directory import differences, has_begun, read_choice, read_config, takes_another


def ask_in(
    path: Path | None,
    recipe: str,
    overrides: Sequence[str],
    fixed: Mapping[str, Any],
    *,
    fit: bool = False,
) -> Asked:
    """Read words as `ask` does, and also with the recipe as it was in earlier versions.

    Args:
        path: the folder to train in, if it is known: a run there may have begun with words that
            today's recipe does not accept.

    Raises:
        InputError: as `ask`.
    """
    former = []
    for version in reversed(EARLIER):
        with suppress(InputError):  # words that this version's recipe does not accept
            former.append(ask(formerly(recipe, version), overrides, fixed, fit=fit))
    try:
        today = ask(recipe, overrides, fixed, fit=fit)
    except InputError:
        for each in former:
            if path is not None and _is_of(path, each):
                return each
        raise
    others = [each for each in former if (each.config, each.open) != (today.config, today.open)]
    return replace(today, former=tuple(others))


def as_begun(path: Path, asked: Asked) -> Asked:
    """What is asked for, with the recipe and the kernels that the run in `path` began with.

    Raises:
        InputError: `path` holds a run that this version cannot read.
    """
    return _with_its_kernels(path, _by_its_recipe(path, asked))


def _by_its_recipe(path: Path, asked: Asked) -> Asked:
    """What today's recipe asks for, unless the run in `path` is closer to an earlier version's."""
    if not asked.former:
        return asked
    try:
        found = read_config(path)
    except InputError:
        return asked
    nearest = min((asked, *asked.former), key=partial(_differing, found))  # the first of equals
    if nearest is asked:
        return asked
    # A folder without training may become another run, which is then one of today's recipe.
    of_today = asked.like(found, ["tokenizer.vocab_size"])
    anew = _differing(found, nearest) > 0 and takes_another(path, found, of_today)
    return asked if anew else nearest


def _with_its_kernels(path: Path, asked: Asked) -> Asked:
    """What is asked for, with the run's own kernels in place of `compute.kernels=auto`.

    Kernels round differently, and a resumed run must end exactly as one that was never stopped.
    """
    compute = asked.config.compute
    if compute.kernels != "auto" or not (path / "config.json").exists():
        return asked
    compute = compute.model_copy(update={"kernels": read_config(path).compute.kernels})
    return replace(asked, config=asked.config.model_copy(update={"compute": compute}))


def _differing(found: RunConfig, asked: Asked) -> float:
    """In how many values a run differs from what is asked for."""
    try:
        return len(differences(found, asked.like(found)))
    except ValidationError:  # the run's values contradict these words
        return math.inf


def default_out(asked: Asked, data_name: str, last: str) -> Path:
    """An unfinished run of what is asked for, or else a folder that does not exist yet.

    Its name is ``runs/RECIPE-DATA-DATE-NUMBER``.

    Args:
        last: name of the file that only a finished run has.
    """
    data = re.sub(r"[^\w-]+", "-", data_name.split(".")[0]).strip("-") or "corpus"
    stem = f"{asked.config.recipe}-{data}"
    for path in sorted(Path("runs").glob(f"{glob.escape(stem)}-????????-*"), reverse=True):
        if not (path / last).exists() and _is_of(path, _by_its_recipe(path, asked)):
            return path
    today = f"{stem}-{datetime.now().strftime('%Y%m%d')}"
    number = 1
    while (path := Path("runs") / f"{today}-{number:02d}").exists():
        number += 1
    return path


def _is_of(path: Path, asked: Asked) -> bool:
    """Whether the run in `path` was asked for by the same words: it left open what they do."""
    try:
        found, choice = read_config(path), read_choice(path)
    except InputError:  # not a run, or one that this version cannot read
        return False
    if choice is not None and not set(asked.open) <= set(choice.follows):
        return False
    return asked.like(found).identity() == found.identity()


def chosen_before(path: Path, asked: Asked) -> Chosen | None:
    """The open values as the run in `path` has them, so that it continues as it began.

    Returns:
        None if there is no run, or one that has not chosen yet, or that may choose again because
        it holds only a corpus, or chose on a busy machine and has not begun to train. A run that
        was asked for by other words also returns its values, so that it differs from what is asked
        for in these words alone.

    Raises:
        InputError: a file of the run is damaged.
    """
    if not asked.open or not (path / "config.json").exists():
        return None
    found, choice = read_config(path), read_choice(path)
    there = Chosen(asked.like(found), choice or Choice())
    if there.config.identity() != found.identity():
        return None if takes_another(path, found, there.config) else there
    if choice is not None and choice.busy and not has_begun(path):
        return None
    prepared = (path / "corpus" / "manifest.json").exists()
    return there if choice is not None or found.corpus is not None or prepared else None


def asked_of_corpus(path: Path, asked: Asked) -> Asked:
    """What is asked for, without the choice of a vocabulary if the run has its corpus already."""
    if not (path / "corpus" / "manifest.json").exists():
        return asked
    vocabulary = "tokenizer.vocab_size"
    config = asked.like(read_config(path), [vocabulary])
    return replace(asked, config=config, open=tuple(k for k in asked.open if k != vocabulary))
