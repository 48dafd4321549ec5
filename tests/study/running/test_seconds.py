"""Budgets of time: every arm gets the FLOPs of so many seconds, the same for all its seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.locks import FolderLock
from crammed.files.writing import write_json
from crammed.machine.device import Device
from crammed.optim.build import update_flops
from crammed.planning.settling import device_of
from crammed.planning.speed import Measured
from crammed.rules.sizing import flops_per_token
from crammed.study.findings.table import equal_text
from crammed.study.result import Run, StudyResult, read_result
from crammed.study.running import runner, seconds
from crammed.study.running.folder import Left, config_of, result_of
from crammed.study.running.request import Request, run
from crammed.study.running.seconds import in_seconds
from crammed.study.spec.arms import Study, load_study
from crammed.study.spec.corpora import Corpora
from crammed.terminal.progress import SILENT
from support.study import SUMMARY, run_of, write_study
from support.text import MODEL, tiny

TEN = Budget.parse("10s")
BASE = ["crammed", *MODEL, "optim.name=adamw", "batch.rows=8"]
ARMS = {
    "plain": [],
    "muon": ["optim.name=muon"],
    "masks": ["masking.rate=0.5"],
    "rate": ["optim.lr=1e-4"],
}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine of 1e9 FLOP/s, or as fast as is set here; how often each kind was timed."""
    machine: dict[str, Any] = {"speed": 1e9, "busy": False, "times": []}

    def speed(config: RunConfig, *_: Any) -> Measured:
        machine["times"].append((config.optim.name, config.masking.rate))
        return Measured(machine["speed"], machine["busy"])

    monkeypatch.setattr(seconds, "training_speed", speed)
    return machine


def limits(study: Study) -> dict[str, float]:
    ends = {arm: [w for w in words if w.startswith("budget.")] for arm, words in study.arms.items()}
    return {arm: Budget.parse(end.partition("=")[2]).limit for arm, (end,) in ends.items()}


def test_seconds_become_flops(tmp_path: Path, corpus: Corpus, timed: dict[str, Any]) -> None:
    arms = load_study(write_study(tmp_path, ARMS, BASE, budgets={"x1": 1, "x2": 2}), corpus, TEN)
    study, paces = in_seconds(arms, Corpora(corpus), TEN, tmp_path / "out", 1, SILENT)
    found = limits(study)
    for arm in ("plain", "rate", "masks"):  # which update without products of their own
        assert found[f"{arm}@x1"] == pytest.approx(1e10, rel=1e-5)
        assert found[f"{arm}@x2"] == pytest.approx(2e10, rel=1e-5)
    config = config_of(study, "muon@x1", Corpora(corpus), TEN)
    gradients = flops_per_token(config) * config.batch.rows * config.data.row_length
    updates = 1e10 / gradients
    assert paces["muon@x1"].seconds_per_update == pytest.approx(10 / updates)
    own = update_flops(config.model, corpus.vocab_size, config.optim)
    assert found["muon@x1"] == pytest.approx(updates * (gradients + own), rel=1e-5)
    # An arm with another rate is as fast as the baseline, by whatever its budget is called.
    assert sorted(timed["times"]) == sorted(3 * [("adamw", 0.25), ("adamw", 0.5), ("muon", 0.25)])


def test_a_study_goes_on_with_the_budgets_it_began_with(
    tmp_path: Path, corpus: Corpus, timed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train(run: Left, command: list[str], *_: Any) -> Run:
        trained.append(command[command.index("--budget") + 1])
        write_json(run.folder / "summary.json", {})
        return run_of()

    monkeypatch.setattr(runner, "_train", train)
    file, out = (
        write_study(tmp_path, {arm: ARMS[arm] for arm in ("plain", "masks")}, BASE),
        tmp_path / "out",
    )
    request = Request(file, [], corpus.path, [], TEN, 2, out, 1)
    first = run(request, SILENT)
    assert trained == 4 * ["1e+10flop"]
    assert equal_text(first) == "equal time"
    timed |= {"speed": 5e8, "busy": True, "times": []}
    run(request, SILENT)
    with FolderLock(out), pytest.raises(InputError, match="out is in use by another process"):
        run(replace(request, name=write_study(tmp_path, ARMS, BASE)), SILENT)
    foreign = replace(request, out=tmp_path / "run")
    write_json(foreign.out / "config.json", {})
    with pytest.raises(InputError, match="is not the folder of a study"):
        run(foreign, SILENT)
    assert not timed["times"]
    # A further arm is timed beside the baseline, which says that the machine is half as fast now.
    write_study(tmp_path, {arm: ARMS[arm] for arm in ("plain", "masks", "muon")}, BASE)
    again = run(Request(file, [], corpus.path, [], TEN, 2, out, 1), SILENT)
    assert {each for each, _ in timed["times"]} == {"adamw", "muon"}
    assert Budget.parse(trained[-1]).limit > 1e10
    config = config_of(load_study(file, corpus, TEN), "muon", Corpora(corpus), TEN)
    gradients = flops_per_token(config) * config.batch.rows * config.data.row_length
    assert again.paces["muon"].seconds_per_update == pytest.approx(gradients / 1e9)
    assert again.paces["plain"] == first.paces["plain"] == read_result(out).paces["plain"]
    assert equal_text(again) == "equal time, measured while other work ran"


def test_an_arm_that_is_changed_before_it_begins_is_timed_anew(
    tmp_path: Path, corpus: Corpus, timed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[str] = []
    given: dict[str, float] = {}

    def train(run: Left, command: list[str], *_: Any) -> Run:
        given[run.arm] = Budget.parse(command[command.index("--budget") + 1]).limit
        return run_of() if run.arm in begins else Run(failed="stopped")

    monkeypatch.setattr(runner, "_train", train)

    def call(width: int) -> StudyResult:
        arms = {"plain": ["optim.lr=5e-4"], "first": [], "wide": [f"model.width={width}"]}
        file = write_study(tmp_path, arms, BASE)
        return run(Request(file, [], corpus.path, [], TEN, 1, tmp_path / "out", 1), SILENT)

    first = call(64)
    begins.append("first")
    timed["speed"] = 5e8  # before anything has begun, this is how fast the machine is
    assert call(64).paces["first"].seconds_per_update == pytest.approx(
        2 * first.paces["first"].seconds_per_update
    )
    assert given["wide"] == pytest.approx(0.5e10, rel=1e-5)
    timed["speed"] = 1e9  # and once an arm has begun, what it has buys the others as much
    call(128)
    assert given["wide"] == given["plain"] == pytest.approx(0.5e10, rel=1e-5)


def test_runs_are_compiled_as_they_were_timed(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed as slow, a run has few FLOPs, by which alone it would not be worth compiling."""
    timed: dict[float, bool] = {}

    def speed(config: RunConfig, device: Device) -> Measured:
        timed[config.model.dropout] = device.compile
        return Measured(1e6, False)

    monkeypatch.setattr(seconds, "training_speed", speed)
    monkeypatch.setattr("crammed.machine.device.can_compile_for_cpu", lambda: True)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    arms = {
        "plain": [],  # which trains in lanes
        "dropout": ["model.dropout=0.1"],
        "eager": ["model.dropout=0.2", "compute.compile=off"],
    }
    base = [*BASE, "batch.rows=64"]
    budget = Budget.parse("4h")
    loaded = load_study(write_study(tmp_path, arms, base), corpus, budget)
    study, _ = in_seconds(loaded, Corpora(corpus), budget, tmp_path / "out", 1, SILENT)
    assert timed == {0.0: False, 0.1: True, 0.2: False}
    for arm in arms:
        config = config_of(study, arm, Corpora(corpus), budget, 1)
        assert config.budget.limit.kind == "flops"
        assert device_of(config).compile == timed[config.model.dropout]


@pytest.mark.parametrize(
    "word",
    [
        "objective.name=electra",
        "loss.name=focal",
        "train.average=0.9",
        "masking.z_loss=1e-4",  # which a loss in place lacks
        "masking.unit=pmi",
        "masking.final_rate=0.5",
        "compute.compile=on",
    ],
)
def test_arms_that_differ_in_what_an_update_computes_are_timed_by_themselves(word: str) -> None:
    assert seconds._kind(tiny("crammed")) != seconds._kind(tiny("crammed", word))


def test_other_budgets_and_studies_by_the_clock_stay_as_they_are(
    tmp_path: Path, corpus: Corpus, timed: dict[str, Any]
) -> None:
    for budget, began in (("1e10flop", False), ("10s", True)):
        parsed, out = Budget.parse(budget), tmp_path / budget
        arms = load_study(write_study(tmp_path, ARMS, BASE), corpus, parsed)
        if began:
            write_json(out / "plain-0" / "config.json", {})
        assert in_seconds(arms, Corpora(corpus), parsed, out, 1, SILENT) == (arms, {})
    assert not timed["times"]


@pytest.mark.parametrize(
    ("budget", "flops", "said"),
    [
        ("1e10flop", (1.0, 1.01), "equal FLOPs"),
        ("1e6tok", (1.0, 1.01), "equal tokens, which are equal FLOPs here"),
        (
            "9updates",
            (0.5, 1.0),
            "equal updates, which cost 1.00 to 2.00 times the baseline's FLOPs",
        ),
        ("1e6tok", (None, None), "equal tokens, whatever they cost"),
        ("1e6tok", (0.0, 1.0), "equal tokens, whatever they cost"),
    ],
)
def test_a_study_says_what_its_arms_have_equal_amounts_of(
    budget: str, flops: tuple[float | None, float | None], said: str
) -> None:
    arms = {
        name: {"words": [], "runs": {"0": run_of() if each is None else run_of(exaflop=each)}}
        for name, each in zip(("base", "other"), flops, strict=True)
    }
    study = StudyResult.model_validate({"baseline": "base", "budget": budget, "arms": arms})
    assert equal_text(study) == said


@pytest.mark.parametrize(
    ("budget", "shares", "said"),
    [
        ("1e18flop", [0.25], "equal FLOPs, except that x0 ran out of text at 25 % of its budget"),
        (
            "10m",
            [0.25, 0.5],
            "equal time, except that 2 of 3 arms ran out of text at 25 to 50 % of their budgets",
        ),
        (
            "1e6tok",
            [0.2, 0.2],
            "equal tokens, whatever they cost, except that 2 of 3 arms ran out of text at 20 % of "
            "their budgets",
        ),
    ],
)
def test_a_study_says_which_arms_ended_before_their_budget(
    tmp_path: Path, budget: str, shares: list[float], said: str
) -> None:
    early = {"epochs": 32.0, "spent": "1", "budget": "1", "text_tokens": 9, "text_bytes": None}
    arms = {"base": run_of()}
    for number, share in enumerate(shares):
        write_json(tmp_path / "summary.json", {**SUMMARY, "early_end": {**early, "share": share}})
        found = result_of(tmp_path)
        assert found is not None
        arms[f"x{number}"] = found.without("exaflop")
    entries = {arm: {"words": [], "runs": {"0": each.values()}} for arm, each in arms.items()}
    study = StudyResult.model_validate({"baseline": "base", "budget": budget, "arms": entries})
    assert equal_text(study) == said
