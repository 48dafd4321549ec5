"""Scores as a terminal shows them, and the published ones beside them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from crammed.evaluation.scores.notes import notes
from crammed.evaluation.scores.published import published, published_beside
from crammed.evaluation.scores.table import blimp_table, comparison_tables, score_tables
from crammed.report.verdict import of_scores
from crammed.terminal.table import Printed, show
from support.scores import BLIMP, GLUE, PAPERS, score


def test_published_scores_add_up_to_the_papers_means() -> None:
    means = {row["name"]: fmean(row["scores"].values()) for row in published()["glue"]}
    assert [round(mean, 1) for mean in means.values()] == [85.2, 80.9, 80.7, 78.6, 78.3, 78.1, 45.5]
    assert {frozenset(row["scores"]) for row in published()["glue"]} == {
        frozenset(["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli-mm", "qnli", "rte"])
    }


def test_only_comparable_numbers_have_published_ones_beside_them() -> None:
    beside = published_beside("glue", GLUE, PAPERS)
    assert beside is not None
    assert beside["columns"] == ["mrpc", "rte", "stsb", "GLUE-2"]
    assert beside["rows"][0]["values"] == [88.1, 55.2, 60.0, 66.6]
    bert = next(row for row in beside["rows"] if row["name"] == "BERT-base, fully trained")
    assert bert["values"] == [89.3, 59.2, 86.7, pytest.approx((89.3 + 59.2) / 2)]
    assert published_beside("mine", GLUE, PAPERS) is None
    assert published_beside("glue", GLUE, {**PAPERS, "pairs": "joint"}) == beside
    for other in ({"batch": 32}, {"pairs": "apart"}):
        assert published_beside("glue", GLUE, {**PAPERS, **other}) is None
    partial = {"tasks": {"qqp": score(80.0, official=False)}, "means": []}
    assert published_beside("glue", partial, PAPERS) is None


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((5, 5), "this model"),
        ((3, 3), "this model, 3 seeds"),
        ((1, 1), "this model, 1 seed"),
        ((5, 3), "this model, 3 or 5 seeds"),
    ],
)
def test_other_seeds_than_the_papers_are_named(seeds: tuple[int, int], words: str) -> None:
    rows = (("rte", seeds[0]), ("mrpc", seeds[1]))
    tasks = {name: score(60.0, seeds=[60.0] * count) for name, count in rows}
    beside = published_beside("glue", {"tasks": tasks, "means": []}, PAPERS)
    assert beside is not None
    assert beside["rows"][0]["name"] == words


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _printed(parts: list[Printed], stream: io.StringIO) -> str:
    show(parts, stream)
    return stream.getvalue()


def test_a_table_in_a_file_is_plain_and_whole() -> None:
    text = _printed([*score_tables("glue", GLUE, PAPERS, 128), blimp_table(BLIMP)], io.StringIO())
    assert "\x1b" not in text
    line = next(line for line in text.splitlines() if line.startswith("qqp"))
    assert line.split("  ")[-1].strip() == "3,668 of 363,846 + 408: partial"
    for words in ("77.0 to 83.0", "3.0 (5 seeds)", "40.5"):
        assert words in line
    for words in (
        "cola FAILED: line 4: no column <sentence>",
        "mrpc: accuracy 71.2; cut to 128 tokens: 3 sequences of train",
        "GLUE-2",
        "RoBERTa-base",
        "76.0 to 76.6",
        "npi licensing",
    ):
        assert words in text, words
    assert "GPT-2" not in _printed([blimp_table({**BLIMP, "official": False})], io.StringIO())


OVER = "points over the untrained model, 95 % interval"
AS_GOOD = "TF-IDF with a linear model does as well or better on"
ENOUGH = "it may be all you need there"


@pytest.mark.parametrize(
    ("floor", "linear", "said"),
    [
        (57.0, 50.0, [f"mine: pretraining made no clear difference: +3.0 {OVER} -1.0 to +7.0"]),
        (80.0, None, [f"mine: pretraining hurt: -20.0 {OVER} -24.0 to -16.0"]),
        (50.0, 60.0, [f"{AS_GOOD} mine (60.0); {ENOUGH}"]),
        (50.0, 50.0, []),
        (None, None, []),
    ],
)
def test_what_simpler_models_say(
    floor: float | None, linear: float | None, said: list[str]
) -> None:
    entry: dict[str, Any] = {**score(60.0, seeds=[60.0]), "interval": [55.0, 70.0]}
    entry.pop("untrained", None)
    if floor is not None:
        gain = [60.0 - floor - 4.0, 60.0 - floor + 4.0]
        entry |= {"untrained": {"median": floor, "interval": None}, "gain": gain}
    if linear is not None:
        entry["linear"] = linear
    tasks = {"mine": entry, "other": {"metric": "f1", "failed": "so"}}
    scores: dict[str, Any] = {"tasks": tasks, "means": []}
    assert notes(tasks) == said
    text = _printed(score_tables("mine", scores, {}, None), io.StringIO())
    assert all(line in text for line in said)
    assert ("TF-IDF" in text.splitlines()[1]) == (linear is not None)


def test_what_helps_with_two_texts() -> None:
    entry = {**score(60.0, seeds=[60.0]), "linear": 60.0}
    joint = {**entry, "joint": True}
    said = [
        f"{AS_GOOD} a (60.0), c (60.0); {ENOUGH}",
        f"{AS_GOOD} b (60.0); --protocol small, which reads two texts apart, may do better",
    ]
    tasks = {"a": entry, "b": joint, "c": entry}
    assert notes(tasks) == said
    shown = dict(of_scores({"mine": {"tasks": tasks}}))
    assert shown["Simple baseline: mine"] == f"{said[0]}. {said[1]}."


def test_a_narrow_terminal_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    text = _printed(score_tables("glue", GLUE, PAPERS, 128), _Terminal())
    assert "…" not in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    own = (
        r"mrpc\n  metric +f1\n  score +88\.1\n  95 % interval +85\.1 to 91\.1\n  spread +3\.0 \(5 "
    )
    assert re.search(own, plain)


def test_a_comparison_says_what_could_not_be_compared() -> None:
    entries: list[dict[str, Any]] = [
        {"name": "rte", "metric": "accuracy", "a": 55.0, "b": 51.0, "difference": 4.0}
        | {"interval": [1.5, 6.0], "p": 0.0},
        {"name": "mrpc", "metric": "f1", "a": 81.0, "b": 80.0, "difference": 1.0}
        | {"interval": [0.5, 1.5], "p": None, "interval_over": "rows"},
        {"name": "qnli", "metric": "accuracy", "a": 81.0, "b": 81.0, "difference": 0.0}
        | {"interval": None, "p": None, "same": True},
        {"name": "MEAN", "of": ["rte"], "a": 55.0, "b": 55.1, "difference": -0.1}
        | {"interval": [-2.0, 2.0], "p": 0.46},
        {"name": "cola", "why": "B failed: no data"},
    ]
    text = _printed(comparison_tables("runs/a", "runs/b", entries), io.StringIO())
    assert re.search(r"rte +accuracy +55\.0 +51\.0 +\+4\.0 +\+1\.5 to \+6\.0 +< 0\.001", text)
    assert re.search(r"MEAN +mean +55\.0 +55\.1 +-0\.1 +-2\.0 to \+2\.0 +0\.460", text)
    assert re.search(r"mrpc .* \+0\.5 to \+1\.5, rows only +none", text)
    assert "not between fine-tuning seeds" in " ".join(text.split())
    assert re.search(r"qnli .* \+0\.0 +same predictions +none", text)
    assert "cola not compared: B failed: no data" in text
    assert "A: runs/a" in text
    assert len(comparison_tables("a", "b", entries[4:])) == 1
    assert "rows only" not in _printed(comparison_tables("a", "b", entries[:1]), io.StringIO())


def test_an_interval_that_no_seeds_were_drawn_for_says_so(tmp_path: Path) -> None:
    """Also in evaluations of versions that did not note it."""
    one = {"mrpc": score(88.1, seeds=[88.1], spread=0.0)}
    text = _printed(score_tables("glue", {"tasks": one, "means": []}, PAPERS, 128), io.StringIO())
    assert "85.1 to 91.1, rows only" in text
    assert "not between fine-tuning seeds" in " ".join(text.split())
    assert "rows only" not in _printed(score_tables("glue", GLUE, PAPERS, 128), io.StringIO())
