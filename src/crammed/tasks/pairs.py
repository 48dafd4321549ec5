"""Reads pairs of sentences of which one is acceptable: the data of BLiMP (Warstadt et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crammed.errors import InputError
from crammed.files.regular import ordinary
from crammed.formats.lines import File
from crammed.formats.records import json_records, without_surrogates

COLUMNS = ("sentence_good", "sentence_bad", "UID", "linguistics_term", "field")


class Pair(NamedTuple):
    """A minimal pair of sentences, and its categories from fine to coarse."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    field: str


def files_of_pairs(path: Path) -> list[Path]:
    """A JSON-lines file itself, or those of a folder such as the official data.

    Raises:
        InputError: there is no such file.
    """
    if path.is_dir():
        return sorted(ordinary(file) for file in path.iterdir() if ".jsonl" in file.suffixes)
    if not path.exists():
        raise InputError(f"no BLiMP data at {path}: name a .jsonl file, or a folder of them")
    return [path]


def read_pairs(path: Path) -> list[Pair]:
    """Read a JSON-lines file, or a folder of them.

    Raises:
        InputError: there is no such file, or a line does not hold a pair.
    """
    pairs = [pair for file in files_of_pairs(path) for pair in _read(file)]
    if not pairs:
        raise InputError(f"{path} holds no pairs of sentences (as .jsonl, which may be compressed)")
    return pairs


def _read(file: Path) -> Iterator[Pair]:
    for place, record in json_records(File(file, str(file)), once=True):
        if missing := [column for column in COLUMNS if column not in record]:
            raise InputError(f"{place}: no {missing[0]}: a line of BLiMP has {', '.join(COLUMNS)}")
        values = [record[column] for column in COLUMNS]
        if not all(isinstance(value, str) for value in values):
            raise InputError(f"{place}: {', '.join(COLUMNS)} must hold text")
        good, bad, paradigm, phenomenon, field = map(without_surrogates, values)
        # The official data spells one of its fields with a slash and with an underscore.
        yield Pair(good, bad, paradigm, phenomenon, field.replace("/", "_"))
