"""Small tasks that a model can learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crammed.tasks.task import load_suite
from support.text import documents, write_rows


def write_task(folder: Path, name: str, rows: int = 96, **columns: Any) -> Path:
    """Write a GLUE task whose label says which of two words the first text contains.

    Args:
        columns: values to set in every row.
    """
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
