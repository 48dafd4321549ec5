"""Makes the data of the built-in suite ``docs`` from this machine's Python documentation.

It uses the docstrings that the source `python-docs` leaves out (`read.python_docs`).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from crammed.data.preparing.read.python_docs import docstrings
from crammed.errors import InputError
from crammed.keys import uniform

TASK_CHARACTERS = 250_000
"""Characters after which no further file of a package is read for the tasks."""
FEWEST_ROWS = 150
"""Rows that each split needs."""


def write_tasks(folder: Path) -> None:
    """Write the two demonstration tasks as folders of JSON lines, in the layout of GLUE.

    ``docs-package``: which of six packages is this docstring from? There are few training rows,
    and docstrings that name their package are left out. ``docs-order``: are the words of this
    sentence in order or shuffled?

    Raises:
        InputError: this Python installation has too little documentation.
    """
    by_package: dict[str, list[str]] = defaultdict(list)
    for package, docstring in docstrings("tasks", 20 * TASK_CHARACTERS, TASK_CHARACTERS):
        text = " ".join(docstring.split())
        if package.lower() not in text.lower():
            by_package[package].append(text)
    unique = {package: sorted(set(texts), key=uniform) for package, texts in by_package.items()}
    largest = sorted(unique, key=lambda package: (-len(unique[package]), package))[:6]
    # Texts are split, not rows, so that no text has rows in both splits; nor has a sentence that
    # several texts have.
    known = set[str]()
    for split, low, high, per_class in (("train", 0.0, 0.6, 48), ("validation", 0.6, 1.0, 60)):
        part = {p: [t for t in texts if low <= uniform(t) < high] for p, texts in unique.items()}
        _write_rows(folder / "docs-package", split, package_rows(part, largest, per_class))
        found = {s for texts in part.values() for t in texts for s in _sentences(t)}
        sentences = sorted((s for s in sorted(found) if _plain(s) not in known), key=uniform)
        known = {_plain(s) for s in sentences}
        rows = 800 if split == "train" else 400
        _write_rows(folder / "docs-order", split, _order_rows(sentences[:rows]))


def package_rows(
    texts: dict[str, list[str]], packages: list[str], per_class: int
) -> list[dict[str, Any]]:
    """The first texts of each package, whose label is its place among the packages."""
    return [
        {"text": text, "label": label}
        for label, package in enumerate(packages)
        for text in texts[package][:per_class]
    ]


def _order_rows(sentences: list[str]) -> list[dict[str, Any]]:
    rows = []
    for index, sentence in enumerate(sentences):
        words = _plain(sentence).split()
        if index % 2 == 0:
            random.Random(sentence).shuffle(words)
        rows.append({"text": " ".join(words), "label": index % 2})
    return rows


def _plain(sentence: str) -> str:
    return sentence.lower().rstrip(".!?")


def _sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
    return [part for part in parts if 30 <= len(part) <= 200]


def _write_rows(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    if len(rows) < FEWEST_ROWS:
        raise InputError("this Python installation has too little documentation for the demo tasks")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(folder / f"{split}.jsonl.gz", "wb", mtime=0) as file:
        for row in sorted(rows, key=lambda row: uniform(json.dumps(row))):
            file.write(json.dumps(row).encode() + b"\n")
