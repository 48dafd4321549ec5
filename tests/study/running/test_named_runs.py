"""Every built-in study runs to its end, at the smallest scale there is, and has a page."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.study.spec.arms import read_study, study_names
from support.command import popen
from support.html import check_balanced
from support.text import write_jsonl

CHEAP = ("objective",)
"""The studies that `make test` runs."""
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
BUDGET = Budget.parse("3072tok")


def prose(count: int) -> list[str]:
    """Documents of made-up words, the first ones frequent, in which no passage is repeated."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))) for _ in range(1500)]
    weights = [1.0 / rank for rank in range(3, len(words) + 3)]

    def sentence() -> str:
        return " ".join(draw.choices(words, weights, k=draw.randint(5, 15))).capitalize() + "."

    return [" ".join(sentence() for _ in range(draw.randint(2, 12))) for _ in range(count)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in CHEAP else pytest.mark.long) for name in study_names()],
)
def test_a_built_in_study_runs_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(subprocess, "Popen", popen)
    # The pages of runs have tests of their own, and take longer than these runs.
    monkeypatch.setattr("crammed.report.study.write_report", lambda _, page: page.touch())
    text = write_jsonl(tmp_path / "text.jsonl", prose(800))
    out = tmp_path / "out"
    studies.study(name, budget=BUDGET, seeds=1, data=[str(text)], out=out, as_json=True)
    result = json.loads(capsys.readouterr().out)
    read = read_study(name)
    labels = [f"@{label}" for label in read.budgets] or [""]
    arms = {f"{arm}{label}" for label in labels for arm in read.arms}
    if name == "architecture":
        arms.remove("rotary")  # which all arms are in the small form
    if name == "batch":
        arms.remove("rows-x0.0625")  # so small a batch rounds it to that of rows-x0.1875
    assert set(result["arms"]) == arms
    for arm, entry in result["arms"].items():
        (run,) = entry["runs"].values()
        assert math.isfinite(run["bits_per_character@0.15"]), arm
        assert run["updates"] > 0
    page = (out / "report.html").read_text("utf-8")
    check_balanced(page)
    assert all(f">{arm}, seed 0</a>" in page for arm in arms)
