"""What a study's differences mean: corrected over its arms, and judged only where they can be."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from crammed.study.findings.power import power
from crammed.study.findings.statistics import (
    compare_arms,
    decidable,
    decidable_text,
    on_plateau,
    without_effect,
)
from crammed.study.findings.table import axis_limit, power_text, study_tables, title_of
from crammed.study.result import Run, StudyResult
from crammed.terminal.table import show
from support.study import run_of

BASE, NEAR, FAR = (4.0, 4.1, 4.2), (3.82, 3.86, 3.78), (3.0, 3.1, 3.05)


FAILED: dict[str, Any] = {"words": [], "runs": {"0": {"failed": "the loss is not finite"}}}


def arm(*losses: float, **scores: list[float]) -> dict[str, Any]:
    one = {"tokens": 10, "updates": 1, "parameters": 5, "seconds": 2.0}
    runs: dict[str, Any] = {}
    for n, loss in enumerate(losses):
        runs[str(n)] = {**one, "loss@0.15": loss, "loss@0.25": loss + 1}
        if scores:
            runs[str(n)]["scores"] = {name: values[n] for name, values in scores.items()}
    return {"words": [], "runs": runs}


def study(base: dict[str, Any], **arms: dict[str, Any]) -> StudyResult:
    return StudyResult.model_validate({"baseline": "base", "arms": {"base": base, **arms}})


def test_differences_have_intervals_and_the_best_is_first() -> None:
    new, base = compare_arms(study(arm(*BASE), new=arm(*FAR)))
    assert (new["arm"], base["arm"]) == ("new", "base")
    loss = new["loss@0.15"]
    assert loss["difference"] == pytest.approx(-1.05)
    assert loss["interval"][0] < -1.05 < loss["interval"][1] < 0
    assert (loss["p"] < 0.01, loss["verdict"]) == (True, "better")
    assert base["loss@0.15"]["difference"] is base["loss@0.15"]["verdict"] is None
    assert new["loss@0.25"]["mean"] == pytest.approx(4.05)


def test_one_seed_has_no_interval_and_a_failure_is_said() -> None:
    rows = compare_arms(study(arm(4.0), one=arm(3.0), bad=FAILED))
    assert [row["arm"] for row in rows] == ["one", "base", "bad"]
    assert rows[0]["loss@0.15"]["difference"] == pytest.approx(-1.0)
    assert rows[0]["loss@0.15"]["p"] is rows[0]["loss@0.15"]["interval"] is None
    assert rows[1]["loss@0.15"]["deviation"] is None
    assert rows[2] == {"arm": "bad", "seeds": 0, "failed": "the loss is not finite"}


def test_an_arm_of_which_runs_failed_is_not_better() -> None:
    some = arm(*FAR)
    some["runs"]["3"] = FAILED["runs"]["0"]
    values = study(arm(*BASE), some=some, worse=arm(5.0, 5.1, 5.05))
    values.arms["worse"].runs["3"] = values.arms["some"].runs["3"]
    verdicts = {row["arm"]: row["loss@0.15"]["verdict"] for row in compare_arms(values)}
    assert verdicts == {"base": None, "some": None, "worse": "worse"}
    line = next(each for each in printed(values).splitlines() if each.startswith("some "))
    assert line.split()[:4] == ["some", "3", "(some", "failed)"]


def test_no_arm_is_worse_than_a_baseline_of_which_runs_failed() -> None:
    values = study(arm(*BASE), new=arm(*FAR), old=arm(5.0, 5.1, 5.05))
    values.arms["base"].runs["3"] = Run(failed="the loss is not finite")
    verdicts = {row["arm"]: row["loss@0.15"]["verdict"] for row in compare_arms(values)}
    assert verdicts == {"base": None, "new": "better", "old": None}


@pytest.mark.parametrize("unigram", [7.0, 4.5, None])
def test_an_arm_that_changes_nothing_is_said_to_have_no_effect(unigram: float | None) -> None:
    values = study(arm(*BASE), same=arm(*BASE[:2]), near=arm(*NEAR))
    values.unigram = unigram
    assert without_effect(values) == ["same"]
    assert "Exactly as base, so without any effect here: same." in decidable_text(values)


def test_fewer_than_three_seeds_give_a_lead() -> None:
    rows = compare_arms(study(arm(*BASE), two=arm(3.0, 3.001), new=arm(*FAR)))
    two = next(row["loss@0.15"] for row in rows if row["arm"] == "two")
    assert (two["verdict"], two["p"], two["p_alone"], two["interval"]) == ("lead", None, None, None)
    new = next(row["loss@0.15"] for row in rows if row["arm"] == "new")
    assert new["verdict"] == "better"
    rows = compare_arms(study(arm(4.0, 4.1), new=arm(*FAR)))  # the baseline's seeds are too few
    assert [row["loss@0.15"]["verdict"] for row in rows] == ["lead", None]


def test_what_one_arm_shows_is_nothing_among_many() -> None:
    """The same numbers: significant as the only arm, but not as the best of twelve."""
    alone = compare_arms(study(arm(*BASE), near=arm(*NEAR)))[0]["loss@0.15"]
    assert alone["verdict"] == "better"
    others = {f"other{n}": arm(*(loss + 0.01 * n for loss in BASE)) for n in range(11)}
    rows = compare_arms(study(arm(*BASE), near=arm(*NEAR), **others))
    among = rows[0]["loss@0.15"]
    assert rows[0]["arm"] == "near"
    assert among["p_alone"] < 0.05
    assert among["p"] == pytest.approx(12 * among["p_alone"])
    assert among["verdict"] is None
    assert among["interval"][0] < among["difference"] < 0 < among["interval"][1]
    assert [row["loss@0.15"]["verdict"] for row in rows] == [None] * 13


def test_the_variance_of_all_arms_joins_that_of_each() -> None:
    """Three seeds that happen to lie close together are no proof; those of the others help."""
    others = {f"other{n}": arm(*BASE) for n in range(10)}
    base, lucky = arm(4.0, 4.02, 3.98), arm(3.92, 3.9, 3.88)
    alone = compare_arms(study(base, lucky=lucky))[0]["loss@0.15"]
    among = compare_arms(study(base, lucky=lucky, **others))
    found = next(row["loss@0.15"] for row in among if row["arm"] == "lucky")
    assert alone["p_alone"] < 0.01
    assert 0.02 < found["p_alone"] < 0.3
    same = study(arm(*BASE), same=arm(4.0, 4.0, 4.0))
    same.baseline = "same"
    assert {row["loss@0.15"]["p"] for row in compare_arms(same)} != {None}


def test_a_noisy_arm_hardly_widens_the_intervals_of_others() -> None:
    quiet = {f"arm{n}": arm(3.9, 3.901 + n / 1000, 3.9) for n in range(6)}
    base, noisy = arm(4.0, 4.004, 4.002), arm(4.0, 6.0, 5.0)
    lengths = []
    for arms in (quiet, {**quiet, "noisy": noisy}):
        rows = {row["arm"]: row["loss@0.15"] for row in compare_arms(study(base, **arms))}
        low, high = rows["arm2"]["interval"]
        lengths.append(high - low)
        assert rows["arm2"]["verdict"] == "better"
    assert lengths[0] < lengths[1] < 4 * lengths[0]


def test_an_interval_agrees_with_the_verdict() -> None:
    """Of two clear differences, Holm's method finds the second one with less: it ends at 0."""
    rows = compare_arms(study(arm(*BASE), far=arm(*FAR), near=arm(3.88, 3.93, 3.98)))
    far, near = (row["loss@0.15"] for row in rows[:2])
    assert 0.025 < near["p_alone"] < 0.05
    assert (far["verdict"], near["verdict"]) == ("better", "better")
    assert near["interval"][0] < near["difference"] < near["interval"][1] == 0.0


def test_arms_without_any_spread_are_not_tested() -> None:
    rows = compare_arms(study(arm(4.0, 4.0, 4.0), same=arm(3.0, 3.0, 3.0), one=arm(3.5)))
    assert {row["loss@0.15"]["p"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("base", "other", "said"),
    [
        ((4.0, 4.0, 4.0), (3.0, 3.0, 3.0), "Nothing varies"),
        ((4.0,), (3.0, 3.1), "Leads, not findings: a verdict takes 3 seeds. One seed tells no var"),
        ((4.0, 4.1), (3.0, 3.1), "Leads, not findings: a verdict takes 3 seeds. With 3 seeds, as"),
        ((4.0, 4.1, 4.0), (3.0, 3.1, 3.2, 3.3), "With 4 seeds, as arms vary here, a difference of"),
    ],
)
def test_what_could_be_found_is_said(
    base: tuple[float, ...], other: tuple[float, ...], said: str
) -> None:
    assert power_text(study(arm(*base), same=arm(*other)), "loss@0.15").startswith(said)


def test_how_many_seeds_would_be_enough_is_said() -> None:
    text = power_text(study(arm(*BASE), new=arm(*FAR)), "loss@0.15")
    needed = "To find a difference of 0.02 in 80 % of such studies, every arm would need more than"
    assert text.endswith(f" {needed} 100 seeds.")


def test_figures_show_what_is_typical() -> None:
    def one(difference: float | None, half: float | None = None) -> dict[str, Any]:
        return {"difference": difference, "interval": half and [-half, half]}

    assert axis_limit([one(None)]) == axis_limit([]) == 1.0
    assert axis_limit([one(None), one(0.0, 0.5)]) == 0.5
    assert axis_limit([one(None), one(0.1), one(-0.1), one(9.0)]) == pytest.approx(1.15 * 0.3)
    assert axis_limit([one(0.1, 0.5), one(-0.1, 0.5)]) == pytest.approx(1.15 * 0.5)


def test_more_is_better_for_scores() -> None:
    values = study(arm(*BASE, blimp=[60.0, 61.0, 60.5]), new=arm(*FAR, blimp=[55.0, 56.0, 55.5]))
    assert values.measures() == ["loss@0.15", "loss@0.25", "blimp"]
    base, new = compare_arms(values, ["blimp"])
    assert (base["arm"], new["arm"]) == ("base", "new")
    assert new["blimp"]["difference"] == pytest.approx(-5.0)
    assert new["blimp"]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("unigram", "decided", "words"),
    [
        (5.2, True, "Decidable at this budget: base ends 1.10 nats below the unigram"),
        (5.0, False, "Not decidable at this budget: base ends 0.90 nats below the unigram"),
        (4.0, False, "base ends 0.10 nats above the unigram cross-entropy of 4.000, but must end"),
        (None, None, "unigram cross-entropy is not part of this result"),
    ],
)
def test_nothing_is_judged_near_the_unigram_model(
    unigram: float | None, decided: bool | None, words: str
) -> None:
    values = study(arm(*BASE), new=arm(*FAR))
    if unigram is not None:
        values.unigram = unigram
    assert decidable(values) is decided
    assert words in decidable_text(values)
    loss = compare_arms(values)[0]["loss@0.15"]
    assert loss["verdict"] == (None if decided is False else "better")
    assert loss["p"] < 0.01


def printed(values: StudyResult) -> str:
    stream = io.StringIO()
    show(study_tables(values), stream)
    return stream.getvalue()


def test_the_table_says_what_is_found() -> None:
    values = study(
        arm(*BASE, blimp=[60.0, 61.0, 60.5]),
        new=arm(*FAR, blimp=[55.0, 56.0, 55.5]),
        bad={"words": [], "runs": {"0": {"failed": "it crashed"}}},
    )
    text = printed(values)
    loss = next(line for line in text.splitlines() if line.startswith("new "))
    assert loss.split()[:2] == ["new", "3"]
    assert "-1.050" in loss
    assert loss.split()[-1] == "better"
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("new ")][1] == "worse"
    assert text.count("failed") == 2
    assert "a difference of 0.02, 0.05, 0.1 or 0.2 would be found in" in " ".join(text.split())
    assert "unigram cross-entropy is not part of this result" in text


def test_the_table_judges_nothing_near_the_unigram_model() -> None:
    values = study(arm(*BASE), new=arm(*FAR))
    values.unigram = 4.5
    text = printed(values)
    assert "-1.050" in text
    assert "Not decidable at this budget" in text
    assert not re.search(r"better|worse|interval|\bp\b", text)


def test_arms_that_are_still_near_the_unigram_model_are_named() -> None:
    values = study(arm(*BASE), slow=arm(4.9, 4.8), late=arm(4.4, 4.5), new=arm(*FAR))
    values.unigram = 5.2
    assert on_plateau(values) == ["late", "slow"]
    assert decidable_text(values).endswith("Still on the plateau, so not comparable: late, slow.")
    values.unigram = 9.0
    assert on_plateau(values) == []
    assert decidable_text(values).endswith("1 is needed.")
    values.unigram = None
    assert on_plateau(values) == []


def test_arms_on_the_plateau_do_not_widen_the_intervals_of_others() -> None:
    values = study(
        arm(4.0, 4.01, 4.02), new=arm(3.9, 3.91, 3.93), slow=arm(5.0, 5.9, 5.4), off=arm(5.6, 5.3)
    )
    wide = next(row["loss@0.15"] for row in compare_arms(values) if row["arm"] == "new")
    values.unigram = 5.5
    rows = {row["arm"]: row["loss@0.15"] for row in compare_arms(values)}
    assert rows["new"]["verdict"] == "better"
    assert wide["interval"][1] > rows["new"]["interval"][1] + 0.01
    assert power(values, stated=[0.1])[0.1] > 0.9


def test_a_baseline_without_a_result_is_said() -> None:
    values = study(FAILED, new=arm(*FAR))
    values.unigram = 7.0
    text = " ".join(printed(values).split())
    assert "No run of the baseline base has finished, so arms cannot be judged yet." in text
    assert "The baseline base has no result, so nothing is compared with it." in text
    assert "--seeds" not in text


def test_an_arm_on_the_plateau_is_compared_by_the_variance_of_all() -> None:
    values = study(arm(4.0, 4.02, 4.01), slow=arm(*(5.5 + n / 200 for n in range(21))))
    values.unigram = 5.5
    row = next(row for row in compare_arms(values) if row["arm"] == "slow")
    assert row["loss@0.15"]["verdict"] == "plateau"
    assert row["loss@0.15"]["p"] < 0.001
    assert power(values) == {}  # of the arms that are past the plateau there is one
    words = "Too few arms are past the plateau to say which differences would be found."
    assert power_text(values, "loss@0.15") == words


def test_scores_of_part_of_the_data_are_marked() -> None:
    values = study(arm(*BASE, blimp=[60.0, 61.0, 60.5]), new=arm(*FAR, blimp=[55.0, 56.0, 55.5]))
    assert "BLiMP, partial" not in printed(values)
    values.arms["new"].runs["1"].partial = ["blimp"]
    assert "BLiMP, partial" in printed(values)
    names = ("glue.cola@mine", "glue.rte@mine", "glue@mine", "glue.cola", "glue")
    values = study(arm(*BASE, **{name: [60.0, 61.0, 60.5] for name in names}))
    values.arms["base"].runs["1"].partial = ["glue.cola@mine"]
    partial = [name for name in names if values.is_partial(name)]
    assert partial == ["glue.cola@mine", "glue@mine"]  # the mean as well
    assert title_of(values, "glue@mine") == "mean of tasks by mine, partial"


def test_tasks_of_one_name_are_told_apart_by_their_suites() -> None:
    scores = {"glue.sst2": 80.0, "small.sst2": 70.0, "small.sst2@mine": 71.0, "small.trec": 60.0}
    arms = {"base": {"words": [], "runs": {"0": run_of(scores=scores).values()}}}
    study = StudyResult.model_validate({"baseline": "base", "budget": "1e6tok", "arms": arms})
    assert [title_of(study, each) for each in scores] == [
        "SST-2 of glue",
        "SST-2 of small",
        "SST-2 of small by mine",
        "TREC",
    ]
