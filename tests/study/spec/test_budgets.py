"""Studies whose arms are trained with several budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.study.findings.statistics import compare_arms
from crammed.study.result import Arm, Run, StudyResult, read_result
from crammed.study.running.folder import config_of
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import Study, load_study
from crammed.study.spec.budgets import split
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import SILENT
from support.study import commands, run_of, write_study

BUDGET = Budget.parse("6updates")


@pytest.fixture
def study(tmp_path: Path, corpus: Corpus) -> Study:
    arms = {"plain": [], "small": ["model.layers=1"]}
    return load_study(write_study(tmp_path, arms, budgets={"x1": 1, "x4": 4}), corpus, BUDGET)


@pytest.mark.parametrize(
    ("text", "factor", "times"),
    [
        ("1h30m", 2, "10800s"),
        ("2e9tok", 4, "8e+09tok"),
        ("3updates", 1.5, "4updates"),
        ("1e18flop", 2.882, "2.882e+18flop"),
        ("90m", 1, "90m"),
    ],
)
def test_a_budget_can_be_multiplied(text: str, factor: float, times: str) -> None:
    assert Budget.parse(text).times(factor).text == times
    assert Budget.parse(text).times(factor).limit == pytest.approx(
        Budget.parse(text).limit * factor, rel=0.2
    )


def test_a_budget_times_too_little_or_too_much_is_refused() -> None:
    with pytest.raises(InputError, match="leaves nothing to train with"):
        Budget.parse("1update").times(0.25)
    with pytest.raises(InputError, match="more than can be spent"):
        Budget.parse("1e18tok").times(4)


def test_every_arm_is_trained_with_every_budget(
    study: Study, corpus: Corpus, tmp_path: Path
) -> None:
    assert study.baseline == "plain@x1"
    said = {}
    for arm, command in commands(study, corpus, BUDGET, tmp_path).items():
        assert not any(word.startswith("budget.limit") for word in command)
        said[arm] = command[command.index("--budget") + 1]
    assert said == {
        "plain@x1": "6updates",
        "small@x1": "6updates",
        "plain@x4": "24updates",
        "small@x4": "24updates",
    }
    assert config_of(study, "small@x4", Corpora(corpus), BUDGET).budget.limit.limit == 24
    assert split(["a", "optim.lr=1"], BUDGET) == (["a", "optim.lr=1"], BUDGET)


def test_arms_are_compared_within_each_budget(
    study: Study, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(run: Any, *_: Any) -> Run:
        loss = 5.0 - run.arm.endswith("x4") + 0.5 * run.arm.startswith("small") + run.seed / 100
        return run_of(loss)

    monkeypatch.setattr("crammed.study.running.runner._train", train)
    result = run_study(study, corpus, BUDGET, 2, tmp_path / "out", 1, SILENT)
    assert read_result(tmp_path / "out") == result
    parts = result.parts()
    assert [(label, part.budget) for label, part in parts.items()] == [
        ("x1", "6updates"),
        ("x4", "24updates"),
    ]
    for label, mean in (("x1", 5.505), ("x4", 4.505)):
        base, small = compare_arms(parts[label])
        assert (base["arm"], small["arm"]) == ("plain", "small")
        assert small["loss@0.15"]["mean"] == pytest.approx(mean)
        assert small["loss@0.15"]["difference"] == pytest.approx(0.5)
    again = run_study(study, corpus, BUDGET, 2, tmp_path / "out", 1, SILENT)
    assert again.arms == result.arms


def test_a_study_without_budgets_is_one_result() -> None:
    arms = {arm: Arm(words=[], runs={}) for arm in ("a", "b@c")}
    result = StudyResult(budget="1h", baseline="a", arms=arms)
    assert result.parts() == {"": result}
