"""Makes two tasks from text that ``tools/gather_text.py`` gathered, with no labels from outside.

    python benchmarks/language_tasks.py TEXT/de.jsonl TASKS/de

The text has its line breaks and is not thinned. ``TASKS/de/text.jsonl`` gets documents to pretrain
on, and the others make the tasks of ``records/2026-11-27-case-and-accents``, in the layout of GLUE.
``package``: which package is this sentence from? ``order``: are the words of this sentence in
order, or shuffled? Both keep case and accents; only the first letter of an ``order`` sentence is
made small, or it would give the answer.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from crammed.data.preparing.demo_tasks import package_rows
from crammed.keys import uniform

SHARES = {"train": 0.25, "validation": 0.5}
"""Up to where in the order of their hashes documents are in each split; the others are text."""
PRETRAINING = 1_500_000
"""Characters of text to pretrain on, roughly."""
PER_PACKAGE = 100
"""Rows of each package and split; packages with fewer sentences are left out."""
IN_ORDER = 1000
"""Sentences of each split that are in order or shuffled."""


def split(record: dict[str, Any]) -> str:
    """Where a document goes: "text", "train" or "validation"."""
    place = uniform(record["text"])
    return next((name for name, end in SHARES.items() if place < end), "text")


def sentences(text: str) -> list[str]:
    """The sentences and lines of 30 to 200 characters that begin with a capital."""
    parts = re.split(r"(?<=[.!?]) |\n", text)
    return [part for part in parts if 30 <= len(part) <= 200 and part[0].isupper()]


def order_rows(every: list[str]) -> list[dict[str, Any]]:
    """Sentences without their last sign: every other one with its words shuffled."""
    rows = []
    for number, sentence in enumerate(every):
        words = (sentence[0].lower() + sentence[1:]).rstrip(".!?").split()
        if number % 2 == 0:
            random.Random(sentence).shuffle(words)
        rows.append({"text": " ".join(words), "label": number % 2})
    return rows


def to_pretrain_on(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents spread evenly, each on one line."""
    step = max(1.0, sum(len(each["text"]) for each in records) / PRETRAINING)
    kept = (records[int(number * step)] for number in range(int(len(records) / step)))
    return [{"text": each["text"].replace("\n", " ")} for each in kept]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    file.write_text("".join(lines), "utf-8")


def make(text: Path, out: Path) -> None:
    """Write the text to pretrain on and the two tasks."""
    records = [json.loads(line) for line in text.read_text("utf-8").split("\n") if line]
    write(out / "text.jsonl", to_pretrain_on([each for each in records if split(each) == "text"]))
    found: dict[str, dict[str, list[str]]] = {"train": {}, "validation": {}}
    seen: set[str] = set()
    for part, packages in found.items():
        by_package = defaultdict(set)
        for each in records:
            if split(each) == part:
                by_package[each["package"]].update({*sentences(each["text"])} - seen)
        packages.update({name: sorted(by_package[name], key=uniform) for name in by_package})
        seen.update(*packages.values())
    enough = [
        package
        for package in sorted(found["train"])
        if min(len(part.get(package, ())) for part in found.values()) >= PER_PACKAGE
    ]
    for part, packages in found.items():
        every = sorted({text for texts in packages.values() for text in texts}, key=uniform)
        write(out / "package" / f"{part}.jsonl", package_rows(packages, enough, PER_PACKAGE))
        write(out / "order" / f"{part}.jsonl", order_rows(every[:IN_ORDER]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("text", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    make(args.text, args.out)


if __name__ == "__main__":
    main()
