"""Small tasks that a model can learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from crammed.errors import InputError
from crammed.tasks.read import read_task
from crammed.tasks.rows import TaskData
from crammed.tasks.task import Suite, load_suite
from support.text import documents, write_rows


def suite_of(**fields: Any) -> Suite:
    """A suite of one task named mine; by default it classifies the column text."""
    task = {"text": "text", "metric": "accuracy", **fields}
    return Suite.model_validate({"name": "s", "tasks": {"mine": task}})


def read_mine(folder: Path, suite: Suite, **splits: Iterable[dict[str, Any]]) -> TaskData:
    """The data of such a task, once these splits are written."""
    for name, rows in splits.items():
        write_rows(folder / "mine" / f"{name}.jsonl", rows)
    return read_task(suite.tasks["mine"], folder, suite)


Rows = Sequence[dict[str, Any]]


def read(folder: Path, train: Rows, validation: Rows | None = None, **fields: Any) -> TaskData:
    """The data of such a task; without others, its training rows are scored."""
    scored = train if validation is None else validation
    return read_mine(folder, suite_of(**fields), train=train, validation=scored)


def refusal(folder: Path, train: Rows, validation: Rows | None = None, **fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, train, validation, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def row(text: Any = "a", label: Any = 0, **more: Any) -> dict[str, Any]:
    return {"text": text, "label": label, **more}


TWO = [row("a", 0), row("b", 1)]


def write_task(folder: Path, name: str, rows: int = 96, **columns: Any) -> Path:
    """Write a GLUE task whose label says which of two words the first text contains."""
    wanted = load_suite("glue").tasks[name]
    texts = documents(rows)
    splits = ["train", *(scored.split for scored in wanted.numbers.values())]
    for split in splits:
        part = []
        for n, text in enumerate(texts if split == "train" else texts[: rows // 2]):
            row: dict[str, Any] = dict.fromkeys(wanted.text, text[:40])
            row[wanted.text[0]] = f"{'harbour' if n % 2 else 'garden'} {text[:30]}"
            part.append({**row, "label": n % 2, "idx": n, **columns})
        write_rows(folder / name / f"{split}.jsonl.gz", part)
    return folder


PAIR = {
    "sentence_good": "The fox runs.",
    "sentence_bad": "The fox run.",
    "UID": "agreement",
    "linguistics_term": "agreement",
    "field": "morphology",
}
"""A pair of BLiMP."""
