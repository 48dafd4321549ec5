"""Evaluations of tiny models on tiny tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crammed.data.corpus import Corpus
from crammed.evaluation.evaluation import Request
from crammed.files.writing import write_json
from support.models import untrained
from support.text import tiny

PROTOCOL = "{seeds: 2, epochs: 2, batch: 8, lr: 2e-3, max_length: 32}"
Ask = Callable[..., Request]


def make_model(path: Path, corpus: Corpus, seed: int, *changes: str) -> Path:
    """The part of a run directory that evaluation needs."""
    config = tiny("crammed", *changes)
    path.mkdir(parents=True)
    untrained(corpus.tokenizer, config.model, seed).save(path / "final")
    write_json(path / "config.json", config.model_dump(mode="json"))
    return path


def tasks_of(result: dict[str, Any]) -> dict[str, Any]:
    tasks: dict[str, Any] = result["suites"]["glue"]["tasks"]
    return tasks
