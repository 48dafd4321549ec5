"""Scaling laws: what was put into made-up studies is found again."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recomputed
from crammed.report import scaling as report
from crammed.study.findings import exchange, scaling
from crammed.study.findings.exchange import Cell, compare_types
from crammed.study.findings.laws import _doubts, laws_of
from crammed.study.findings.scaling import analyse, best_parameters, cells_of, fit_law, spread_of
from crammed.study.result import Run, StudyResult

FLOPS = {"x1": 1e13, "x2": 2e13, "x4": 4e13, "x8": 8e13, "x16": 1.6e14}
LEADS = "types: leads only, because a verdict takes 3 seeds"
SIZES = {"half": 3e5, "one": 1e6, "double": 3e6}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SHUFFLES", 199)
    monkeypatch.setattr(scaling, "DRAWS", 50)


def loss_of(flops: float, parameters: float, a: float = 400.0, b: float = 0.15) -> float:
    """A power law whose best size grows with the root of the FLOPs, and a parabola around it."""
    best = 1e6 * (flops / 4e13) ** 0.5
    return float(a * flops**-b * (1.0 + 0.02 * math.log(parameters / best) ** 2))


def made(
    types: dict[str, float], deviation: float, seeds: int = 3, seed: int = 0, **law: float
) -> StudyResult:
    """A study whose types multiply the loss, with made-up seeds."""
    random = np.random.default_rng(seed)
    arms: dict[str, Any] = {}
    for (label, flops), (kind, factor), (size, n) in product(
        FLOPS.items(), types.items(), SIZES.items()
    ):
        runs = {}
        for number in range(seeds):
            loss = factor * loss_of(flops, n, **law) * math.exp(deviation * random.normal())
            cost = {"tokens": 1, "seconds": 1.0, "exaflop": flops / 1e18, "parameters": int(n)}
            runs[str(number)] = {"loss@0.15": loss, **cost}
        arms[f"{kind}.{size}@{label}"] = {"words": [], "runs": runs}
    budgets = {label: f"{flops}flop" for label, flops in FLOPS.items()}
    return StudyResult.model_validate(
        {"budgets": budgets, "baseline": "gated.one@x1", "budget": "1h", "arms": arms}
    )


def analysed(study: StudyResult) -> tuple[dict[str, Any], Any]:
    """What `analyse` finds in a study with enough budgets."""
    found = analyse(study)
    assert found is not None
    return found


@settings(max_examples=50, deadline=None)
@given(
    a=st.floats(1.0, 1e4),
    b=st.floats(0.03, 1.2),
    c=st.floats(0.0, 3.0),
    start=st.floats(1e10, 1e20),
)
def test_a_law_is_found_again(a: float, b: float, c: float, start: float) -> None:
    flops = [start * 2**n for n in range(6)]
    losses = [a * (each / start) ** -b + c for each in flops]
    law = fit_law(flops, losses, floor=True)
    assert [law(each) for each in flops] == pytest.approx(losses, rel=1e-5)
    plain = fit_law(flops, [each - c for each in losses], floor=False)
    assert plain.b == pytest.approx(b, abs=1e-5)
    assert plain.c == 0.0


def test_a_law_needs_as_many_budgets_as_it_has_parameters() -> None:
    with pytest.raises(ValueError, match="3 parameters"):
        fit_law([1.0, 2.0, 2.0], [3.0, 2.0, 2.1], floor=True)


def test_the_best_size_is_the_bottom_of_a_parabola() -> None:
    sizes = [1e5, 1e6, 1e7]
    losses = [4.0 + math.log(n / 2e6) ** 2 for n in sizes]
    assert best_parameters(sizes, losses) == pytest.approx(2e6)
    assert best_parameters(sizes, [4.0 + math.log(n / 1e9) ** 2 for n in sizes]) is None
    assert best_parameters(sizes, [-each for each in losses]) is None
    assert best_parameters(sizes[:2], losses[:2]) is None


def test_a_study_gives_back_its_law_its_best_sizes_and_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "DRAWS", 200)
    found = analysed(made({"gated": 1.0, "bert": 1.0}, 0.003))
    for kind in ("gated", "bert"):
        one = found[0][kind]
        low, high = one.law.between
        assert low < one.law.b < high
        assert one.exponent == pytest.approx(0.5, abs=0.1)
        assert [point.label for point in one.best] == list(FLOPS)
        for size in one.sizes:
            best = 1e6 * (size.flops / 4e13) ** 0.5
            assert size.between[0] < size.parameters < size.between[1]
            assert size.parameters == pytest.approx(best, rel=0.3)
    assert found[1].p > 0.05


def test_a_type_that_is_worse_is_found_and_priced() -> None:
    found = analysed(made({"gated": 1.0, "bert": 1.02}, 0.003))
    assert found[1].p == pytest.approx(2 / 20)  # the least with two types of three seeds
    shifts = found[1].shifts
    assert shifts["bert"][0] == pytest.approx(1.0, abs=0.1)
    assert shifts["gated"][0] == pytest.approx(-1.0, abs=0.1)
    # At equal size, bert is where both together would be with fewer FLOPs.
    assert shifts["bert"][1] == pytest.approx(1.01 ** (-1 / 0.15), rel=0.05)


def test_the_test_of_types_is_right_five_times_in_a_hundred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under no difference p is even over [0, 1], though a seed is lucky at all budgets."""
    monkeypatch.setattr(exchange, "SHUFFLES", 39)
    values = []
    for seed in range(200):
        study = made({"gated": 1.0, "rotary": 1.0, "bert": 1.0}, 0.003, 3, seed)
        luck = np.random.default_rng(seed).normal(1.0, 0.01, (3, 3))
        for name, entry in study.arms.items():
            kind = ("gated", "rotary", "bert").index(name.partition(".")[0])
            for number, run in entry.runs.items():
                loss = (run.value("loss@0.15") or 0.0) * luck[kind, int(number)]
                entry.runs[number] = run.model_copy(update={"loss@0.15": loss})
        test = compare_types(cells_of(study), 0.15)
        assert test is not None
        values.append(test.p)
    assert sum(p <= 0.05 for p in values) <= 10 + 2 * math.sqrt(200 * 0.05 * 0.95)
    assert sum(p <= 0.5 for p in values) == pytest.approx(100, abs=22)


def test_the_exchange_agrees_with_plain_loops_and_all_permutations() -> None:
    """Two types, one size, two budgets, two seeds: few enough to look at every exchange."""
    losses = {("a", "x1"): (3.0, 3.1), ("b", "x1"): (3.3, 3.2)}
    losses |= {("a", "x2"): (2.5, 2.6), ("b", "x2"): (2.65, 2.7)}
    cells = [
        Cell(kind, "", label, FLOPS[label], 10, each, ("0", "1"))
        for (kind, label), each in losses.items()
    ]
    test = compare_types(cells, 0.15)
    assert test is not None

    def left(order: tuple[str, ...]) -> float:
        """What a shift and a slope for each type leave, which fit two budgets exactly."""
        squares = 0.0
        for label in ("x1", "x2"):
            logs = [math.log(v) for kind in "ab" for v in losses[kind, label]]
            for kind in "ab":
                own = [v for v, of in zip(logs, order, strict=True) if of == kind]
                squares += sum((v - sum(own) / 2) ** 2 for v in own)
        return squares

    real = tuple("aabb")
    every = [left(order) for order in set(permutations(real))]
    share = sum(each <= left(real) * (1 + 1e-9) for each in every) / len(every)
    assert test.p == pytest.approx(share, abs=1e-12)
    assert test.least == 2 / 6  # to call each type by the other's name changes nothing
    assert test.seeds == 2


@pytest.mark.parametrize("shuffles", [199, 1999])
def test_recomputing_gives_the_same(monkeypatch: pytest.MonkeyPatch, shuffles: int) -> None:
    """Whether all exchanges are tried or some."""
    monkeypatch.setattr(exchange, "SHUFFLES", shuffles)
    study = made({"gated": 1.0, "bert": 1.004, "plain": 0.998}, 0.01)
    (_, test), again = analysed(study), recomputed.laws(study.model_dump(mode="json"))
    assert test.p == pytest.approx(again["p"], abs=1e-9 if shuffles == 1999 else 0.2)
    assert 0.01 < test.p < 1.0
    assert test.least == pytest.approx(6 / 1680 if shuffles == 1999 else 1 / 200)
    for name, (percent, worth) in test.shifts.items():
        assert again["shifts"][name] == pytest.approx((percent, worth), rel=0.05, abs=0.01)


def test_types_as_far_apart_as_can_be_have_the_least_p_and_one_seed_tells_nothing() -> None:
    for seeds, least in ((3, 6 / 1680), (1, 1.0)):
        study = made({"gated": 0.9, "bert": 1.0, "plain": 1.1}, 1e-4, seeds)
        _, test = analysed(study)
        assert test.least == pytest.approx(max(least, 1 / 200))
        assert test.p == pytest.approx(test.least)
        leads = laws_of(study, analysed(study))[-4] == LEADS
        assert leads == (seeds == 1)


def test_a_seed_that_some_cell_lacks_does_not_count() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.003)
    study.arms["bert.one@x1"].runs["1"] = Run(failed="no memory")
    _, test = analysed(study)
    assert test.seeds == 2
    assert laws_of(study, analysed(study))[-3] == LEADS
    for name in ("0", "2"):
        study.arms["gated.half@x2"].runs[name] = Run(failed="no memory")
    assert analysed(study)[1] is None


def test_a_type_that_pays_more_for_a_token_is_compared_at_equal_flops() -> None:
    """Types on one curve, of which one has spent half as much again on the same tokens."""
    study = made({"gated": 1.0, "dear": 1.0}, 0.003)
    for name, entry in study.arms.items():
        if name.startswith("dear"):
            for seed, run in entry.runs.items():
                loss = run.values()["loss@0.15"] * 1.5**-0.15
                more = {"loss@0.15": loss, "exaflop": 1.5 * (run.exaflop or 0.0)}
                entry.runs[seed] = run.model_copy(update=more)
    found = analysed(study)
    assert found[1].p > 0.05
    assert found[1].shifts["dear"][0] == pytest.approx(0.0, abs=0.2)
    assert found[1].shifts["dear"][1] == pytest.approx(1.0, abs=0.02)


def test_sizes_are_only_compared_at_equal_flops() -> None:
    study = made({"gated": 1.0}, 0.0, seeds=1)
    for name, entry in study.arms.items():  # at equal tokens, a size costs what it has parameters
        run, size = entry.runs["0"], SIZES[name.partition("@")[0].split(".")[1]]
        flops = (run.exaflop or 0.0) * 1e18 * size / 1e6
        loss = 400.0 * flops**-0.15 * (1.1 if size < 1e6 else 1.0)
        more = {"loss@0.15": loss, "exaflop": flops / 1e18}
        entry.runs["0"] = run.model_copy(update=more)
    one = analysed(study)[0]["gated"]
    assert [size.parameters for size in one.sizes] == 5 * [None]
    assert one.exponent is None
    spent = [cell.flops for cell in one.best]
    assert spent == sorted(spent)
    # Small ones are beaten as soon as another has spent as little.
    assert {cell.size for cell in one.best[2:]} == {"one", "double"}


def test_intervals_hold_the_true_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "DRAWS", 100)
    monkeypatch.setattr(scaling, "FOR_A_FLOOR", 99)
    held = 0
    for seed in range(60):
        found = analysed(made({"gated": 1.0}, 0.01, 3, seed))
        low, high = found[0]["gated"].law.between
        held += low <= 0.15 <= high
    assert held >= 51  # 57 expected, less three deviations


def test_what_has_not_finished_is_left_out() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.0, seeds=1)
    study.arms["bert.one@x1"].runs["0"].exaflop = None
    study.arms["bert.one@x2"].runs = {"0": Run(failed="no memory")}
    cells = cells_of(study)
    assert len(cells) == len(study.arms) - 2
    assert spread_of(cells)[1] == 0
    found = analysed(study)  # with one seed each there are no intervals
    assert found[0]["gated"].law.between is None
    assert found[1].seeds == 1
    assert analyse(study.model_copy(update={"budgets": {}})) is None


def test_budgets_that_all_ended_with_the_text_have_no_law() -> None:
    study = made({"gated": 1.0, "bert": 1.02}, 0.003)
    for entry in study.arms.values():
        for run in entry.runs.values():
            run.exaflop = 1e-5
    found = analysed(study)
    for one in found[0].values():
        assert (one.law, one.exponent) == (None, None)
    assert found[1].shifts["bert"][1] is None
    said = laws_of(study, found)
    assert said[0].startswith("gated: lowest loss ")
    page = report.scaling(study, {arm.split("@")[0]: ("#000000", "none") for arm in study.arms})
    assert page is not None
    assert page["laws"] == said
    two = {"x1": 1e13, "x2": 1e13, "x4": 4e13, "x8": 4e13, "x16": 4e13}
    for arm, entry in study.arms.items():
        for run in entry.runs.values():
            run.exaflop = two[arm.split("@")[1]] / 1e18
    again = analysed(study)
    assert again[0]["gated"].law.c == 0.0  # two numbers cannot tell a floor


def test_budgets_that_are_too_small_give_no_findings() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.0, seeds=1)
    assert _doubts(study) == []  # as in older studies, nobody knows
    study.unigram = 1.0 + study.arms["gated.one@x4"].values_of("loss@0.15")[0]
    slow = "bert.double, bert.half, gated.double, gated.half at x4"
    assert _doubts(study) == [
        f"Left out, because still on the plateau of word frequencies: {slow}.",
        "Not decidable at x1, x2, so what follows is not a finding:",
    ]
    assert laws_of(study, analyse(study))[:2] == _doubts(study)
    study.unigram = 0.0
    assert _doubts(study)[0].startswith("Not decidable at any of these budgets, so ")


def test_arms_on_the_plateau_enter_no_law() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.005)
    study.unigram = 1.5 + study.arms["gated.one@x1"].values_of("loss@0.15")[0]
    before = analysed(study)
    for kind, loss in (("gated", study.unigram), ("bert", study.unigram - 0.9)):
        arm = study.arms[f"{kind}.half@x1"]
        for seed, run in arm.runs.items():
            arm.runs[seed] = run.model_copy(update={"loss@0.15": loss})
    said = "Left out, because still on the plateau of word frequencies: bert.half, gated.half at x1"
    assert _doubts(study) == [f"{said}."]
    assert laws_of(study, analyse(study))[0] == _doubts(study)[0]
    found = analysed(study)
    assert found[1].shifts != before[1].shifts
    assert found[1].p > 0.05
    assert len(found[0]["gated"].best) == 5


def test_a_type_that_is_late_is_left_out_of_the_test_alone() -> None:
    """Off the plateau at one budget only, it has no curve to compare with those of the others."""
    two = made({"gated": 1.0, "bert": 1.02}, 0.003)
    three = made({"gated": 1.0, "bert": 1.02, "late": 1.0}, 0.003)
    for name, entry in two.arms.items():
        three.arms[name] = entry
    unigram = 1.1 + two.arms["gated.half@x1"].values_of("loss@0.15")[0]
    two.unigram = three.unigram = unigram
    for name, entry in three.arms.items():
        if name.startswith("late.") and not name.endswith(f"@{list(three.budgets)[-1]}"):
            for seed, run in entry.runs.items():
                entry.runs[seed] = run.model_copy(update={"loss@0.15": unigram - 0.5})
    expected, found = analysed(two), analysed(three)
    assert found[0].keys() == {"gated", "bert"}
    assert found[1] == expected[1]


def test_what_was_found_is_said() -> None:
    study = made({"gated": 1.0, "bert": 1.02}, 0.003, 4)
    found = analysed(study)
    said = laws_of(study, found)
    assert len(said) == 2 + 2 + 1 + 2
    assert said[0].startswith("gated: loss ")
    assert " at 10 TFLOP (half), " in said[0]
    assert "bert: best size by parabolas " in said[3]
    assert said[4].startswith("types differ: one curve for all types against one per type, ")
    assert said[6].startswith("bert: +1.03 % loss at equal size and FLOPs, equivalent to ")
    assert "equivalent to 0.9" in said[6]
    del found[0]["bert"]
    assert len(laws_of(study, (found[0], None))) == 2


def test_arms_without_named_sizes_are_compared_at_equal_flops_alone() -> None:
    study = made({"gated": 1.0, "bert": 1.02}, 0.003)
    study.baseline = "gated@x1"
    study.arms = {
        name.replace(".one", ""): arm for name, arm in study.arms.items() if ".one" in name
    }
    said = laws_of(study, analysed(study))
    assert " at 10 TFLOP (1 M parameters), " in said[0]
    assert said[-1].startswith("bert: +1.0")
    assert "% loss at equal FLOPs, equivalent to 0.9" in said[-1]
