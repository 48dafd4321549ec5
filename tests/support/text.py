"""Small text, recipes small enough for a test, and a clock that a test moves."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crammed.config import RunConfig
from crammed.doctor import TINY
from crammed.rules.recipe import load_config

_SUBJECTS = ("the old sailor", "a quiet girl", "my neighbour", "the red fox", "that engineer")
_VERBS = ("counts", "paints", "forgets", "carries", "repairs", "follows")
_OBJECTS = ("seven lanterns", "the broken clock", "a heavy stone", "every letter", "two boats")
_PLACES = ("near the harbour", "under the bridge", "in the garden", "behind the mill", "at night")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct simple sentences."""
    draw = random.Random(seed)
    parts = (_SUBJECTS, _VERBS, _OBJECTS, _PLACES)
    return [
        f"{' '.join(draw.choice(part) for part in parts).capitalize()} on day {number}."
        for number in range(count)
    ]


def documents(count: int, seed: int = 0) -> list[str]:
    """Documents of a few sentences each."""
    lines = sentences(4 * count, seed)
    return [" ".join(lines[4 * n : 4 * n + 4]) for n in range(count)]


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write JSON lines, compressed if the name says so, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    return write_rows(path, ({"text": text} for text in texts))


MODEL = [word for word in TINY if not word.startswith(("data.", "tokenizer."))]
"""Overrides for a tiny model on an existing corpus."""


def tiny(recipe: str = "crammed", *overrides: str, **fixed: Any) -> RunConfig:
    """A recipe small enough for a test."""
    by_key = {word.partition("=")[0]: word for word in (*TINY, *overrides)}
    return load_config(recipe, list(by_key.values()), fixed)


class FakeClock:
    """A clock that a test moves; each reading moves it by `tick`."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 100.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now
