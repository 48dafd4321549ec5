"""Finds the run that a command goes on with, and what was chosen when that run began."""

from __future__ import annotations

import glob
import re
from datetime import datetime
from pathlib import Path

from crammed.choosing import Asked, Choice, Chosen
from crammed.errors import InputError
from crammed.rundir import read_choice, read_config, takes_another


def default_out(asked: Asked, data_name: str, last: str) -> Path:
    """An unfinished run of what is asked for, or else a folder that does not exist yet.

    Its name is ``runs/RECIPE-DATA-DATE-NUMBER``.

    Args:
        last: name of the file that only a finished run has.
    """
    data = re.sub(r"[^\w-]+", "-", data_name.split(".")[0]).strip("-") or "corpus"
    stem = f"{asked.config.recipe}-{data}"
    for path in sorted(Path("runs").glob(f"{glob.escape(stem)}-????????-*"), reverse=True):
        if not (path / last).exists() and _is_of(path, asked):
            return path
    today = f"{stem}-{datetime.now().strftime('%Y%m%d')}"
    number = 1
    while (path := Path("runs") / f"{today}-{number:02d}").exists():
        number += 1
    return path


def _is_of(path: Path, asked: Asked) -> bool:
    """Whether the run in `path` is of the same words: it did not set what they leave open."""
    try:
        found, choice = read_config(path), read_choice(path)
    except InputError:  # not a run, or one that this version cannot read
        return False
    if choice is not None and not set(asked.open) <= set(choice.follows):
        return False
    return asked.like(found).identity() == found.identity()


def as_begun(path: Path, asked: Asked) -> Asked:
    """What is asked for, where `compute.kernels=auto` leaves the kernels to the run in `path`.

    Kernels differ by rounding, and a run that is resumed ends as one that was never stopped.

    Raises:
        InputError: `path` holds a run that this version cannot read.
    """
    compute = asked.config.compute
    if compute.kernels != "auto" or not (path / "config.json").exists():
        return asked
    compute = compute.model_copy(update={"kernels": read_config(path).compute.kernels})
    return Asked(asked.config.model_copy(update={"compute": compute}), asked.open)


def chosen_before(path: Path, asked: Asked) -> Chosen | None:
    """What the run in `path` has for what is open, so that it goes on as it began.

    Returns:
        None if there is no run, or one that has not chosen yet, or that may choose again because
        it holds nothing but a corpus. The values of a run that was asked for in other words are
        returned, too: it differs from what is asked for in these words alone.

    Raises:
        InputError: a file of the run is damaged.
    """
    if not asked.open or not (path / "config.json").exists():
        return None
    found, choice = read_config(path), read_choice(path)
    there = Chosen(asked.like(found), choice or Choice())
    if there.config.identity() != found.identity():
        return None if takes_another(path, found, there.config) else there
    prepared = (path / "corpus" / "manifest.json").exists()
    return there if choice is not None or found.corpus is not None or prepared else None


def asked_of_corpus(path: Path, asked: Asked) -> Asked:
    """What is left to choose where the run in `path` has prepared its corpus already."""
    if not (path / "corpus" / "manifest.json").exists():
        return asked
    vocabulary = "tokenizer.vocab_size"
    config = asked.like(read_config(path), [vocabulary])
    return Asked(config, tuple(key for key in asked.open if key != vocabulary))
