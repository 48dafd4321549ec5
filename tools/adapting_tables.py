"""Tables of encoders of others trained further, and of the ways to an encoder.

A record holds the ``summary.json`` of runs of `crammed adapt` and what `benchmarks/run_mlm.py`
printed, as ``GROUP-NAME.json``, and what `crammed decide --json` printed, as
``decision-NAME.json``.
"""

from __future__ import annotations

from typing import Any

import layout
from crammed.evaluation.decision import cell, ways_in
from layout import row_of, table


def adapted_table(words: list[str]) -> str:
    """The adaptations of a group in a record, the one with the lowest held-out loss first."""
    record, group = words
    files = (layout.RECORDS / record).glob(f"{group}-*.json")
    found = {file.stem.removeprefix(f"{group}-"): layout.found(file) for file in files}
    head = row_of(group, "updates", "tokens", "held-out loss", "memory")
    rows = [
        row_of(
            *(name, f"{one['updates']:,}", f"{one['tokens']:,}"),
            *(f"{one['heldout']['loss@0.15']:.3f}", f"{one['memory_bytes'] / 1e6:,.0f} MB"),
        )
        for name, one in sorted(found.items(), key=lambda item: item[1]["heldout"]["loss@0.15"])
    ]
    return table(head, rows)


def decisions_table(words: list[str]) -> str:
    """The scores of every way to an encoder, by text and task; the best of a row is bold."""
    rows, ways = [], []
    for file in sorted((layout.RECORDS / words[0]).glob("decision-*.json")):
        scores = layout.found(file)["scores"]
        ways = ways_in(scores)
        text = file.stem.removeprefix("decision-").replace("-", " ")
        rows += [
            row_of(text, name, *(_shown(each, way) for way in ways))
            for name, each in scores.items()
        ]
    head = row_of("text", "task", *ways)
    return table(head, rows)


def _shown(score: dict[str, Any], way: str) -> str:
    return f"**{cell(score, way)}**" if way == score["best"] else cell(score, way)
