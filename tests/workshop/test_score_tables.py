"""Tables of what encoders score on tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

import layout
from crammed.files.writing import write_json
from layout import findable
from score_tables import agreement_table, scores_table


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a record of this name."""
    monkeypatch.setattr(layout, "RECORDS", tmp_path)
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def test_a_suite_with_many_tasks_has_a_row_for_each_and_one_for_their_mean(made: Path) -> None:
    names = [f"task-{n}" for n in range(5)]
    for arm, best in (("one", 80.0), ("two", 70.0)):
        for seed in range(2):
            one = {"median": best + seed}
            tasks: dict[str, Any] = {name: {**one, "linear": 75.0} for name in names}
            tasks["task-4"] = {**one, "untrained": {"median": 40.0}}
            mean = {"name": "small", "value": best + seed, "linear": 0.0}
            part = {"name": "mean of task-1, task-2", "value": 0.0}
            scores = {"suites": {"small": {"tasks": tasks, "means": [mean, part]}}}
            write_json(made / f"{arm}-{seed}.json", scores)
    head, _, *rows = scores_table("made").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert head.startswith("| task | one | two | difference, 95 % interval | found in 80 % | one, ")
    assert [row[0] for row in cells] == [*names, "mean of small"]
    assert cells[0][1:4] == ["80.5 ± 0.7", "70.5 ± 0.7", "+10.0 (+7.0 to +13.0)"]
    assert [cells[n][5] for n in (0, 4)] == ["", "40.0 ± 0.0"]
    assert [cells[n][-1] for n in (0, 4, 5)] == ["75.0", "", "0.0"]
    assert cells[5][1] == "80.5 ± 0.7"


def test_every_seed_counts_once(made: Path) -> None:
    with pytest.raises(SystemExit, match="has no file ARM-SEED"):
        scores_table("made")
    for seed, score in ((0, 50.0), (1, 51.0), (10, 60.0)):
        small = {"tasks": {"sst2": {"median": score}}, "means": []}
        write_json(made / f"one-{seed}.json", {"suites": {"small": small}})
    write_json(made / "decision-mail.json", {})
    assert "| one | 53.7 ± 5.5 |" in scores_table("made")
    write_json(made / "one-2.json", {"suites": {"small": small, "glue": small}})
    with pytest.raises(SystemExit, match="two suites score sst2"):
        scores_table("made")
    broken = {"tasks": {"sst2": {"failed": "no rows"}}, "means": []}
    write_json(made / "one-2.json", {"suites": {"small": broken}})
    with pytest.raises(SystemExit, match="sst2 failed: no rows"):
        scores_table("made")


def test_arms_may_be_scored_on_different_tasks(made: Path) -> None:
    for arm, names in (("one", "b"), ("two", "ab")):
        for seed in range(2):
            small = {"tasks": {name: {"median": 50.0} for name in names}, "means": []}
            write_json(made / f"{arm}-{seed}.json", {"suites": {"small": small}})
    assert scores_table("made").splitlines() == [
        "| arm | b | a |",
        "|---|---|---|",
        "| one | 50.0 ± 0.0 |  |",
        "| two | 50.0 ± 0.0 | 50.0 ± 0.0 |",
        "| TF-IDF with a linear model |  |  |",
    ]


def test_tasks_that_rank_encoders_alike_agree(made: Path) -> None:
    for n, scored in enumerate([(50.0, 1.0, 9.0), (60.0, 2.0, 8.0), (61.0, 90.0, 1.0)]):
        tasks = {name: {"median": each} for name, each in zip("abc", scored, strict=True)}
        scores = {"suites": {"small": {"tasks": tasks, "means": []}}}
        write_json(made / f"arm{n}-0.json", scores)
    rows = agreement_table("made").splitlines()
    assert rows[2:] == [
        "| a and b | 3 | 1.00 |",
        "| a and c | 3 | -1.00 |",
        "| b and c | 3 | -1.00 |",
    ]


def test_a_difference_is_found_as_often_as_the_table_says() -> None:
    first, second = np.array([80.0, 81.0, 82.5]), np.array([70.0, 70.5, 70.9])
    shift = findable(list(first), list(second))
    assert findable([1.0, 1.0], [2.0, 2.0]) == 0.0
    draws = np.random.default_rng(0).normal(size=(2, 20_000, 3))
    one, two = draws[0] * first.std(ddof=1) + shift, draws[1] * second.std(ddof=1)
    found = ttest_ind(one, two, axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.05)
