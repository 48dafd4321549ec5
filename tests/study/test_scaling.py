"""Scaling laws: what was put into made-up studies is found again."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.report import scaling as report
from crammed.study import scaling
from crammed.study.laws import doubts, law_lines, laws_of
from crammed.study.scaling import (
    Cell,
    analyse,
    best_parameters,
    cells_of,
    compare_types,
    fit_law,
    spread_of,
)

FLOPS = {"x1": 1e13, "x2": 2e13, "x4": 4e13, "x8": 8e13, "x16": 1.6e14}
SIZES = {"half": 3e5, "one": 1e6, "double": 3e6}


def loss_of(flops: float, parameters: float, a: float = 400.0, b: float = 0.15) -> float:
    """A power law whose best size grows with the root of the FLOPs, and a parabola around it."""
    best = 1e6 * (flops / 4e13) ** 0.5
    return float(a * flops**-b * (1.0 + 0.02 * math.log(parameters / best) ** 2))


def made(
    types: dict[str, float], deviation: float, seeds: int = 3, seed: int = 0, **law: float
) -> dict[str, Any]:
    """A study whose types multiply the loss, with made-up seeds."""
    random = np.random.default_rng(seed)
    arms: dict[str, Any] = {}
    for (label, flops), (kind, factor), (size, n) in product(
        FLOPS.items(), types.items(), SIZES.items()
    ):
        runs = {}
        for number in range(seeds):
            loss = factor * loss_of(flops, n, **law) * math.exp(deviation * random.normal())
            runs[str(number)] = {"loss@0.15": loss, "exaflop": flops / 1e18, "parameters": int(n)}
        arms[f"{kind}.{size}@{label}"] = {"words": [], "runs": runs}
    budgets = {label: f"{flops}flop" for label, flops in FLOPS.items()}
    return {"budgets": budgets, "baseline": "gated.one@x1", "budget": "1h", "arms": arms}


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


@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_law_on_a_fine_grid_fits_better(floor: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    y = 3.0 * x**-0.3 + 1.0 + 0.05 * random.normal(size=5)

    def error(a: Any, b: Any, c: Any) -> Any:
        each = [((a * f**-b + c) / loss - 1.0) ** 2 for f, loss in zip(x, y, strict=True)]
        return sum(each)

    law = fit_law(x.tolist(), y.tolist(), floor)
    floors = np.linspace(0.0, 2.5, 60) if floor else np.zeros(1)
    a, b, c = np.meshgrid(np.linspace(0.1, 6.0, 60), np.linspace(0.01, 2.0, 60), floors)
    assert error(law.a, law.b, law.c) <= error(a, b, c).min() + 1e-12
    assert law.a >= 0.0
    assert law.c >= 0.0


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
    monkeypatch.setattr(scaling, "SHUFFLES", 199)
    monkeypatch.setattr(scaling, "DRAWS", 200)
    found = analyse(made({"gated": 1.0, "bert": 1.0}, 0.003))
    assert found is not None
    for kind in ("gated", "bert"):
        one = found["types"][kind]
        low, high = one["law"]["b_interval"]
        assert low < one["law"]["b"] < high
        assert one["exponent"] == pytest.approx(0.5, abs=0.1)
        assert [point["label"] for point in one["points"]] == list(FLOPS)
        for size in one["sizes"]:
            best = 1e6 * (size["flops"] / 4e13) ** 0.5
            assert size["interval"][0] < size["parameters"] < size["interval"][1]
            assert size["parameters"] == pytest.approx(best, rel=0.3)
    assert found["test"]["p_permutation"] > 0.05
    assert found["test"]["p"] > 0.05


def test_a_type_that_is_worse_is_found_and_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SHUFFLES", 199)
    monkeypatch.setattr(scaling, "DRAWS", 20)
    found = analyse(made({"gated": 1.0, "bert": 1.02}, 0.003))
    assert found is not None
    assert found["test"]["p"] < 1e-6
    assert found["test"]["p_permutation"] == 1 / 200
    shifts = found["test"]["shifts"]
    assert shifts["bert"]["percent"] == pytest.approx(1.0, abs=0.1)
    assert shifts["gated"]["percent"] == pytest.approx(-1.0, abs=0.1)
    # At equal size, bert is where both together would be with fewer FLOPs.
    assert shifts["bert"]["compute"] == pytest.approx(1.01 ** (-1 / 0.15), rel=0.05)


def test_the_test_of_types_is_right_five_times_in_a_hundred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under no difference p is even over [0, 1], whatever the sizes and budgets do."""
    monkeypatch.setattr(scaling, "SHUFFLES", 39)
    values = []
    for seed in range(200):
        cells = cells_of(made({"gated": 1.0, "rotary": 1.0, "bert": 1.0}, 0.01, 2, seed))
        test = compare_types(cells, {}, seed)
        assert test is not None
        values.append((test["p"], test["p_permutation"]))
    for number in (0, 1):
        wrong = sum(value[number] <= 0.05 for value in values)
        assert wrong <= 10 + 2 * math.sqrt(200 * 0.05 * 0.95)
        assert sum(value[number] <= 0.5 for value in values) == pytest.approx(100, abs=22)


def test_f_agrees_with_plain_loops_and_all_permutations() -> None:
    """Two types, one size, two budgets, two seeds: few enough to look at every exchange."""
    losses = {("a", "x1"): (3.0, 3.1), ("b", "x1"): (3.3, 3.2)}
    losses |= {("a", "x2"): (2.5, 2.6), ("b", "x2"): (2.65, 2.7)}
    cells = [
        Cell(kind, "", label, FLOPS[label], 10, each) for (kind, label), each in losses.items()
    ]
    test = compare_types(cells, {})
    assert test is not None

    def f(x1: tuple[str, ...], x2: tuple[str, ...]) -> float:
        apart = alike = 0.0
        for label, kinds in (("x1", x1), ("x2", x2)):
            logs = [math.log(v) for kind in "ab" for v in losses[kind, label]]
            alike += sum((v - sum(logs) / 4) ** 2 for v in logs)
            for kind in "ab":  # a shift and a slope for each type fit two budgets exactly
                own = [v for v, of in zip(logs, kinds, strict=True) if of == kind]
                apart += sum((v - sum(own) / 2) ** 2 for v in own)
        return ((alike - apart) / 2) / (apart / 4)

    real = tuple("aabb")
    assert test["freedom"] == [2, 4]
    assert test["f"] == pytest.approx(f(real, real))
    every = [f(x1, x2) for x1 in set(permutations(real)) for x2 in set(permutations(real))]
    share = sum(each >= f(real, real) * (1 - 1e-9) for each in every) / len(every)
    assert test["p_permutation"] == pytest.approx(share, abs=0.02)


def test_intervals_hold_the_true_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SHUFFLES", 1)
    monkeypatch.setattr(scaling, "DRAWS", 100)
    monkeypatch.setattr(scaling, "FOR_A_FLOOR", 99)
    held = 0
    for seed in range(60):
        found = analyse(made({"gated": 1.0}, 0.01, 3, seed))
        assert found is not None
        low, high = found["types"]["gated"]["law"]["b_interval"]
        held += low <= 0.15 <= high
    assert held >= 51  # 57 expected, less three deviations


def test_what_has_not_finished_is_left_out() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.0, seeds=1)
    del study["arms"]["bert.one@x1"]["runs"]["0"]["exaflop"]
    study["arms"]["bert.one@x2"]["runs"] = {"0": {"failed": "no memory"}}
    cells = cells_of(study)
    assert len(cells) == len(study["arms"]) - 2
    assert spread_of(cells)[1] == 0
    found = analyse(study)  # with one seed each there are no intervals
    assert found is not None
    assert found["types"]["gated"]["law"]["b_interval"] is None
    assert found["test"]["freedom"] == [2, 11]  # of the 13 cells that both types have
    assert analyse({**study, "budgets": {}}) is None


def test_an_arm_whose_name_ends_in_a_dot_has_a_figure() -> None:
    study = made({"gated": 1.0}, 0.01)
    arms = {arm.replace(".one", "."): runs for arm, runs in study["arms"].items() if "one" in arm}
    study |= {"arms": arms, "baseline": "gated.@x1"}
    figures = report.scaling(study, {"gated.": ("#000000", "none")})
    assert figures is not None
    assert figures["sizes"] is None
    assert figures["laws"][0].startswith("gated.: loss ")


def test_budgets_that_all_ended_with_the_text_have_no_law() -> None:
    study = made({"gated": 1.0, "bert": 1.02}, 0.003)
    for entry in study["arms"].values():
        for run in entry["runs"].values():
            run["exaflop"] = 1e-5
    found = analyse(study)
    assert found is not None
    for one in found["types"].values():
        assert (one["law"], one["exponent"]) == (None, None)
    assert found["test"]["shifts"]["bert"]["compute"] is None
    said = law_lines(found)
    assert said[0].startswith("gated: best ")
    page = report.scaling(study, {arm.split("@")[0]: ("#000000", "none") for arm in study["arms"]})
    assert page is not None
    assert page["laws"] == said
    two = {"x1": 1e13, "x2": 1e13, "x4": 4e13, "x8": 4e13, "x16": 4e13}
    for arm, entry in study["arms"].items():
        for run in entry["runs"].values():
            run["exaflop"] = two[arm.split("@")[1]] / 1e18
    again = analyse(study)
    assert again is not None
    assert again["types"]["gated"]["law"]["c"] == 0.0  # two numbers cannot tell a floor


def test_budgets_that_are_too_small_give_no_findings() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.0, seeds=1)
    assert doubts(study) == []  # as in older studies, nobody knows
    study["unigram"] = 1.0 + study["arms"]["gated.one@x4"]["runs"]["0"]["loss@0.15"]
    slow = "bert.double, bert.half, gated.double, gated.half at x4"
    assert doubts(study) == [
        f"Left out, because still on the plateau of word frequencies: {slow}.",
        "Not decidable at x1, x2, so what follows is not a finding:",
    ]
    assert laws_of(study)[:2] == doubts(study)
    study["unigram"] = 0.0
    assert doubts(study)[0].startswith("Not decidable at any of these budgets, so ")


def test_arms_on_the_plateau_enter_no_law() -> None:
    study = made({"gated": 1.0, "bert": 1.0}, 0.005)
    study["unigram"] = 1.5 + study["arms"]["gated.one@x1"]["runs"]["0"]["loss@0.15"]
    before = analyse(study)
    for kind, loss in (("gated", study["unigram"]), ("bert", study["unigram"] - 0.9)):
        for run in study["arms"][f"{kind}.half@x1"]["runs"].values():
            run["loss@0.15"] = loss
    said = "Left out, because still on the plateau of word frequencies: bert.half, gated.half at x1"
    assert doubts(study) == [f"{said}."]
    assert laws_of(study)[0] == doubts(study)[0]
    found = analyse(study)
    assert before is not None
    assert found is not None
    less = (before["test"]["freedom"][1] - found["test"]["freedom"][1], 2 * 3 - 1)
    assert less[0] == less[1]  # the six runs of a block, which had a mean
    assert found["test"]["p_permutation"] > 0.05
    assert len(found["types"]["gated"]["points"]) == 5


def test_a_type_that_is_late_is_left_out_of_the_test_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off the plateau at one budget only, it has no curve to compare with those of the others."""
    monkeypatch.setattr(scaling, "SHUFFLES", 199)
    two = made({"gated": 1.0, "bert": 1.02}, 0.003)
    three = made({"gated": 1.0, "bert": 1.02, "late": 1.0}, 0.003)
    for name, entry in two["arms"].items():
        three["arms"][name] = entry
    unigram = 1.1 + two["arms"]["gated.half@x1"]["runs"]["0"]["loss@0.15"]
    two["unigram"] = three["unigram"] = unigram
    for name, entry in three["arms"].items():
        if name.startswith("late.") and not name.endswith(f"@{list(three['budgets'])[-1]}"):
            for run in entry["runs"].values():
                run["loss@0.15"] = unigram - 0.5
    expected, found = analyse(two), analyse(three)
    assert expected is not None
    assert found is not None
    assert found["types"].keys() == {"gated", "bert"}
    assert found["test"] == expected["test"]


def test_what_was_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SHUFFLES", 199)
    monkeypatch.setattr(scaling, "DRAWS", 20)
    found = analyse(made({"gated": 1.0, "bert": 1.02}, 0.003))
    assert found is not None
    said = law_lines(found)
    assert len(said) == 2 + 2 + 1 + 2
    assert said[0].startswith("gated: loss ")
    assert " at 10 TFLOP" in said[0]
    assert "bert: best size by parabolas " in said[3]
    assert said[4].startswith("types differ: one curve for all against one for each, F(2, ")
    assert said[6].startswith("bert: +0.96 % loss at equal size")
    assert "as all types with 0.9" in said[6]
    del found["types"]["bert"]
    assert len(law_lines({**found, "test": None})) == 2
