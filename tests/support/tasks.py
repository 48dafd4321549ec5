"""Small tasks that a model can learn."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from crammed.tasks.task import load_suite
from support.text import documents


def write_task(folder: Path, name: str, rows: int = 96, **columns: Any) -> Path:
    """Write a GLUE task whose label says which of two words the first text contains.

    Args:
        columns: values to set in every row.
    """
    made = folder / name
    made.mkdir(parents=True)
    wanted = load_suite("glue").tasks[name]
    texts = documents(rows)
    splits = ["train", *(scored.split for scored in wanted.numbers.values())]
    for split in splits:
        part = texts if split == "train" else texts[: rows // 2]
        with gzip.open(made / f"{split}.jsonl.gz", "wt") as file:
            for n, text in enumerate(part):
                row: dict[str, Any] = dict.fromkeys(wanted.text, text[:40])
                row[wanted.text[0]] = f"{'harbour' if n % 2 else 'garden'} {text[:30]}"
                file.write(json.dumps({**row, "label": n % 2, "idx": n, **columns}) + "\n")
    return folder


PAIR = {
    "sentence_good": "The fox runs.",
    "sentence_bad": "The fox run.",
    "UID": "agreement",
    "linguistics_term": "agreement",
    "field": "morphology",
}
"""A pair of BLiMP."""
