"""Runs over several corpora, sizes and lengths, one at a time in each lane of cores.

    python benchmarks/grid.py GRID.yaml NAME=CORPUS [NAME=CORPUS ...] --out DIR --cores 0 --cores 1

A study compares arms on one corpus at one budget. A grid asks how a choice depends on both. Its
file is a list, in the order to run:

    - corpora: [1M, 3M]                 # names; the command line gives their folders
      epochs: [1, 4, 16]                # how often each corpus is read; or tokens: [2.4e6]
      words: [[crammed, model.layers=2, model.width=64], [crammed, model.layers=2, model.width=128]]
      variant: default                  # a name for what the words change
      seeds: [0, 1]

Each combination is one `crammed pretrain` process, which does not end early (`budget.most_epochs`
is null unless the words set it). DIR/runs.json is written after each run; repeating the command
continues with what is missing, and --dry-run only lists that.
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from common import Json, losses_text, run
from crammed.budget import Budget
from crammed.config import PositiveFloat, Section
from crammed.config.yamlfile import load_yaml, validated
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.hashes import json_hash
from crammed.files.locks import FolderLock
from crammed.files.writing import read_json, write_json
from crammed.runs.directory import read_config
from crammed.runs.environment import environment
from lanes import Processes, core_numbers, in_lanes, separate

KEPT = ("tokens", "updates", "epochs", "parameters", "charged_seconds", "device", "heldout")
"""What is kept of a run's summary."""
_LONGEST = 120
"""Characters of a readable name that the name of a folder may take."""


class Entry(Section):
    """An entry of a grid."""

    corpora: list[str]
    words: list[list[str]]
    variant: str
    seeds: list[int]
    epochs: list[PositiveFloat] = Field(default_factory=list)
    tokens: list[PositiveFloat] = Field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """One run of a grid."""

    corpus: str
    tokens: int
    words: tuple[str, ...]
    variant: str
    seed: int

    @property
    def asked(self) -> Json:
        """What identifies it in the file."""
        return {
            "corpus": self.corpus,
            "asked_tokens": self.tokens,
            "words": list(self.words),
            "variant": self.variant,
            "seed": self.seed,
        }


def main(
    grid: Annotated[Path, typer.Argument(help="What to run.")],
    corpora: Annotated[list[str], typer.Argument(help="NAME=CORPUS")],
    out: Annotated[Path, typer.Option(help="Folder of results and runs.")],
    cores: Annotated[list[str], typer.Option(help="Cores of a lane, such as 0,1; repeated.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what is missing.")] = False,
) -> None:
    folders: dict[str, Path] = {}
    for word in corpora:
        name, folder = _named(word)
        if folders.setdefault(name, folder) != folder:
            raise InputError(f"{name} names two corpora: give each a name of its own")
    opened = {name: Corpus(folder) for name, folder in folders.items()}
    points = list(dict.fromkeys(_points(grid, opened)))
    lanes = separate([core_numbers(text) for text in cores])
    with FolderLock(out):
        runs = Runs(out, opened)
        missing = [point for point in points if not runs.has(point)]
        millions = sum(point.tokens for point in missing) / 1e6
        print(f"{len(missing)} of {len(points)} runs to go, {millions:.1f} M tokens", flush=True)
        if dry_run:
            for point in missing:
                print(f"{point.corpus}  {point.tokens:>10,}  {' '.join(point.words)}  {point.seed}")
        else:
            _go(missing, lanes, runs)


class Runs:
    """The finished runs, and the file that keeps them."""

    def __init__(self, out: Path, corpora: dict[str, Corpus]) -> None:
        self.out, self._corpora = out, corpora
        self._file, self._changing = out / "runs.json", threading.Lock()
        self._processes = Processes()
        described = {name: _described(corpus) for name, corpus in corpora.items()}
        self._values: Json = read_json(self._file) or {"corpora": {}, "runs": []}
        known, runs = self._values.get("corpora"), self._values.get("runs")
        kept = runs if isinstance(runs, list) else [None]
        if not all(isinstance(each, dict) for each in (known, *kept)):
            raise InputError(f"{self._file} does not hold the runs of a grid: choose another --out")
        for name, values in described.items():
            if self._values["corpora"].setdefault(name, values) != values:
                raise InputError(f"{self._file} has another corpus {name}: choose another --out")

    def has(self, point: Point) -> bool:
        """Whether a run has finished."""
        asked = point.asked.items()
        return any(all(each.get(key) == v for key, v in asked) for each in self._values["runs"])

    def train(self, point: Point, lane: Sequence[int]) -> Json:
        """Train one on these cores, and keep its result."""
        folder = self.out / "runs" / _folder(point)
        corpus = self._corpora[point.corpus]
        words = [sys.executable, "-m", "crammed", "pretrain", *point.words]
        words += ["--corpus", str(corpus.path), "--budget", f"{point.tokens}tok"]
        if not any(word.startswith("budget.most_epochs") for word in point.words):
            words.append("budget.most_epochs=null")  # the grid says how often the text is read
        words += ["--seed", str(point.seed), "--out", str(folder), "--json"]
        self._processes.run(words, folder.with_name(f"{folder.name}.log"))
        summary = read_json(folder / "summary.json") or {}
        model = read_config(folder).model
        result = {
            **point.asked,
            "text_tokens": corpus.manifest["tokens"],
            "layers": model.layers,
            "width": model.width,
            **{key: summary[key] for key in KEPT},
            "cores": len(lane),
            "environment": environment(),
        }
        with self._changing:
            self._values["runs"].append(result)
            write_json(self._file, self._values)
        return result

    def stop(self) -> None:
        """End what is training; it continues next time."""
        self._processes.stop(signal.SIGTERM)


def _go(points: Sequence[Point], lanes: Sequence[Sequence[int]], runs: Runs) -> None:
    left, done, began = sum(point.tokens for point in points), 0, time.perf_counter()
    for point, result in in_lanes(lanes, points, runs.train, runs.stop):
        done += point.tokens
        seconds = (time.perf_counter() - began) * (left - done) / done
        print(f"{_line(point, result)}; about {seconds / 60:.0f} min left", flush=True)


def _points(grid: Path, corpora: dict[str, Corpus]) -> Iterator[Point]:
    """The runs of a grid, in its order."""
    try:
        listed = load_yaml(grid.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {grid}: {error}") from error
    if not isinstance(listed, list):
        raise InputError(f"{grid} is not a list of entries with {', '.join(Entry.model_fields)}")
    for number, each in enumerate(listed, 1):
        entry = validated(Entry, each, f"{grid}, entry {number}")
        for seed, name in itertools.product(entry.seeds, entry.corpora):
            if name not in corpora:
                raise InputError(f"{grid} needs a corpus {name}: add {name}=DIR")
            text = corpora[name].manifest["tokens"]
            lengths = [*entry.tokens, *(times * text for times in entry.epochs)]
            budgets = [Budget.parse(f"{tokens:.0f}tok") for tokens in lengths]
            for budget, words in itertools.product(budgets, entry.words):
                yield Point(name, round(budget.limit), tuple(words), entry.variant, seed)
        if not (entry.seeds and entry.corpora and entry.words and entry.epochs + entry.tokens):
            raise InputError(
                f"{grid}, entry {number} defines no run: give it corpora, words, seeds, and epochs "
                "or tokens"
            )


def _described(corpus: Corpus) -> Json:
    manifest = corpus.manifest
    kept = {key: manifest[key] for key in ("documents", "characters", "tokens", "vocab_size")}
    return {"sha256": corpus.sha256, **kept}


def _name(point: Point) -> str:
    """A readable name, which need not be unique."""
    words = "-".join(word.partition("=")[2] or word for word in point.words)
    return f"{point.corpus}-{point.tokens}-{words}-{point.seed}"


def _folder(point: Point) -> str:
    """The name of the run's folder, which is unique."""
    shown = re.sub(r"[^\w.+-]+", "-", _name(point)).lstrip(".")[:_LONGEST]
    return f"{shown}-{json_hash(point.asked)[:8]}"


def _line(point: Point, result: Json) -> str:
    losses = losses_text(result["heldout"])
    return f"{_name(point)}: {losses}, {result['charged_seconds']:.0f} s"


def _named(word: str) -> tuple[str, Path]:
    name, equals, folder = word.partition("=")
    if not equals:
        raise InputError(f"{word!r} is not NAME=CORPUS")
    return name, Path(folder)


if __name__ == "__main__":
    run(main)
