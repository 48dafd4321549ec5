"""Small data that the tests make themselves; one thread a process, so that xdist has the cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.config import ComputeConfig, RunConfig
from crammed.data.corpus import Corpus
from crammed.data.prepare import prepare
from crammed.device import Device, choose_device
from crammed.doctor import TINY
from crammed.progress import SILENT
from crammed.recipe import load_config

torch.set_num_threads(1)

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


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


def tiny(recipe: str = "crammed", *overrides: str, **fixed: Any) -> RunConfig:
    """A recipe small enough for a test."""
    by_key = {word.partition("=")[0]: word for word in (*TINY, *overrides)}
    return load_config(recipe, list(by_key.values()), fixed)


class FakeClock:
    """A clock that a test moves; each reading may move it a little, too."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 100.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture(scope="session")
def cpu() -> Device:
    return choose_device(ComputeConfig(device="cpu", dtype="float32"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("text") / "text.jsonl", documents(600))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Corpus:
    config = tiny(data={"sources": [str(text_file)]})
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    return prepare(config.data, config.tokenizer, out, SILENT)


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., Corpus]:
    """A corpus from documents, with overrides of the tiny configuration."""

    def make(texts: list[str], *overrides: str) -> Corpus:
        source = write_jsonl(tmp_path / "source.jsonl", texts)
        config = tiny("crammed", *overrides, data={"sources": [str(source)]})
        return prepare(config.data, config.tokenizer, tmp_path / "made", SILENT)

    return make
