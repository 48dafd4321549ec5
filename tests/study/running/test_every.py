"""``crammed study all``: every built-in study, what it costs, and what they share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import crammed.study.running.request
from crammed.budget import Budget, format_seconds
from crammed.cli import studies
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError, TaskFailed
from crammed.files.writing import write_json
from crammed.machine.workers import cores
from crammed.planning.speed import Measured
from crammed.rules.recipe import load_config
from crammed.rules.sizing import flops_per_token, in_vocabulary
from crammed.study.result import StudyResult
from crammed.study.running.request import Request
from crammed.study.running.timing import Timing
from crammed.study.spec.arms import read_study, study_names, with_words
from crammed.terminal.progress import SILENT, Progress
from support.study import write_study
from support.text import MODEL, write_jsonl

MINUTE = Budget.parse("60s")
OWN = {"data", "vocabulary"}
"""The studies that prepare corpora of their own."""


def every(
    tmp_path: Path, budget: Budget | None = MINUTE, name: str = "all", **options: Any
) -> dict[str, Any]:
    (tmp_path / "text.txt").write_text("Some text.\n\nMore of it.\n")
    given = {"words": [], "corpus": None, "seeds": 2, "jobs": 1, "as_json": True, **options}
    given.setdefault("data", [str(tmp_path / "text.txt")])
    studies.study(name, budget=budget, out=tmp_path / "out", **given)
    return given


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device of 1e9 FLOP/s on which only training takes time; what was measured."""
    asked: list[str] = []

    def speed(config: RunConfig, *_: Any) -> Measured:
        asked.append(f"{config.model.layers} x {config.model.width}, {config.optim.name}")
        return Measured(1e9, False)

    monkeypatch.setattr("crammed.planning.settling.training_speed", speed)
    monkeypatch.setattr("crammed.study.running.timing.HELD_OUT", 0.0)
    monkeypatch.setattr(Timing, "_starting", lambda _: 0.0)
    return asked


def test_a_dry_run_says_what_everything_costs(tmp_path: Path, capsys: Any) -> None:
    every(tmp_path, dry_run=True)
    said = json.loads(capsys.readouterr().out)
    assert sorted(said) == study_names()
    for name, cost in said.items():
        study = read_study(name)
        factors = list(study.budgets.values()) or [1.0]
        arms = len(study.arms) - (name == "architecture")  # whose rotary arm is the small baseline
        assert cost["arms"] == arms * len(factors)
        assert cost["runs"] == cost["left"] == 2 * cost["arms"]
        assert cost["seconds"] == pytest.approx(120.0 * arms * sum(factors))
        assert cost["core_hours"] == pytest.approx(cost["seconds"] * cores() / 3600.0)
    assert not (tmp_path / "out").exists()


def masking(tmp_path: Path, corpus: Corpus, budget: str = "1e10flop", **options: Any) -> None:
    """Ask what the study of masks costs."""
    given = {"words": ["crammed", *MODEL], "corpus": corpus.path, "data": None, "dry_run": True}
    every(tmp_path, Budget.parse(budget), "masking", **{**given, **options})


def test_without_a_budget_every_run_gets_the_flops_of_the_study(
    tmp_path: Path, corpus: Corpus, capsys: Any
) -> None:
    given = {"words": ["crammed", *MODEL], "corpus": corpus.path, "data": None, "dry_run": True}
    every(tmp_path, None, "masking", **given)
    assert json.loads(capsys.readouterr().out)["masking"]["seconds"] == pytest.approx(16 * 5e3)
    (tmp_path / "own.yaml").write_text("baseline: a\narms: {a: [], b: [optim.lr=1e-4]}\n")
    with pytest.raises(InputError, match="unless its file sets budget"):
        every(tmp_path, None, str(tmp_path / "own.yaml"), **given)


def write_runs(tmp_path: Path, arms: Any, **result: Any) -> None:
    """The folder of a study with these runs, those that failed without a result."""
    out = tmp_path / "out"
    entries = {arm: {"words": ["crammed"], "runs": runs} for arm, runs in arms.items()}
    write_json(out / "study.json", {"budgets": {}, "arms": entries, **result})
    for arm, runs in arms.items():
        for seed, run in runs.items():
            if "failed" not in run:
                write_json(out / f"{arm}-{seed}" / "summary.json", {})


def test_what_has_finished_costs_nothing(
    tmp_path: Path, corpus: Corpus, capsys: Any, device: list[str]
) -> None:
    masking(tmp_path, corpus)
    before = json.loads(capsys.readouterr().out)["masking"]
    assert (before["left"], before["seconds"]) == (16, pytest.approx(160.0))
    done = {"loss@0.15": 4.0, "tokens": 10, "seconds": 10.0}
    runs = {"0": done, "1": {"failed": "no memory"}}
    write_runs(tmp_path, {"masks-25": runs})
    masking(tmp_path, corpus, as_json=False)
    said = capsys.readouterr().out
    assert said.startswith("masking  8 arms, 15 of 16 runs to go, about 2m 30s")
    assert "and judging" not in said
    runs["1"] = runs["0"]
    write_runs(tmp_path, dict.fromkeys(read_study("masking").arms, runs))
    device.clear()
    masking(tmp_path, corpus)
    assert json.loads(capsys.readouterr().out)["masking"]["seconds"] == 0.0
    assert not device


def test_starting_held_out_loss_and_judging_are_part_of_the_cost(
    tmp_path: Path, corpus: Corpus, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured before the first run has finished, and as they were after that."""
    monkeypatch.setattr(Timing, "_starting", lambda _: 3.0)
    monkeypatch.setattr("crammed.study.running.timing.HELD_OUT", 0.5)
    words = ["crammed", *MODEL, "train.heldout_every=null"]
    masking(tmp_path, corpus, words=words)
    rows, study = corpus.manifest["data"]["heldout_rows"], with_words(read_study("masking"), words)
    arms = [
        load_config("crammed", own, corpus.settings()) for _, *own in map(study.words, study.arms)
    ]
    flops = sum(flops_per_token(in_vocabulary(each, corpus.vocab_size)) for each in arms)
    a_row_of_each = flops * corpus.row_length / 1e9
    expected = 2 * (8 * (10.0 + 2 * 3.0) + 0.5 * rows * a_row_of_each)
    assert json.loads(capsys.readouterr().out)["masking"]["seconds"] == pytest.approx(expected)
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [])
    judged: dict[str, Any] = {"words": words, "judges": "blimp", "blimp": pairs}
    masking(tmp_path, corpus, **judged, as_json=False)
    assert capsys.readouterr().out.endswith(" core-hours, and judging by blimp\n")
    masking(tmp_path, corpus, words=words, ray="10.0.0.5:6379", jobs=4, as_json=False)
    alone = format_seconds(round(expected))
    said = f"about {alone} of runs, as many at a time as the cluster holds"
    assert said in capsys.readouterr().out
    run = {"loss@0.15": 4.0, "tokens": 10, "seconds": 12.0, "whole_seconds": 17.0}
    scored = {**run, "scores": {"blimp": 60.0}, "judging_seconds": {"blimp": 7.0}}
    write_runs(tmp_path, {"masks-25": {"0": scored}, "masks-15": {"0": run}})
    # One that was resumed, of which only the last part is known, says nothing about the rest.
    half = {**run, "whole_seconds": 2.0}
    write_runs(tmp_path, {"masks-25": {"0": scored}, "masks-15": {"0": run, "5": half}})
    masking(tmp_path, corpus, **judged)
    cost = json.loads(capsys.readouterr().out)["masking"]
    assert (cost["left"], cost["uncounted"]) == (15, [])
    # 12 runs of other arms, the second seeds of two, and one that is only to be judged.
    assert cost["seconds"] == pytest.approx(12 * (10.0 + 5.0) + 2 * (12.0 + 5.0) + 15 * 7.0)


def test_a_dry_run_counts_what_a_call_would_do(tmp_path: Path, corpus: Corpus, capsys: Any) -> None:
    """Runs whose folders are gone train again, and all are judged again by data that changed."""
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [])

    def left() -> int:
        masking(tmp_path, corpus, judges="blimp", blimp=pairs)
        return int(json.loads(capsys.readouterr().out)["masking"]["left"])

    run = {"loss@0.15": 4.0, "tokens": 10, "seconds": 10.0, "scores": {"blimp": 60.0}}
    arms = {"masks-25": {"0": run, "1": run}}
    write_runs(tmp_path, arms)
    assert left() == 14
    (tmp_path / "out" / "masks-25-1" / "summary.json").unlink()
    assert left() == 15
    write_runs(tmp_path, arms, judges={"blimp": "of other data"})
    assert left() == 16


def test_each_size_and_optimizer_is_measured_once(
    tmp_path: Path, corpus: Corpus, device: list[str]
) -> None:
    arms = {
        "plain": [],
        "wide": ["model.width=64"],
        "muon": ["optim.name=muon"],
        "more": ["batch.rows=4"],
    }
    file = write_study(tmp_path, arms, ["crammed-2022", *MODEL])
    options = {"words": [], "corpus": corpus.path, "data": None, "dry_run": True}
    every(tmp_path, Budget.parse("1e10flop"), file, **options)
    assert len(device) == len(set(device)) == 3


def test_little_text_costs_no_more_than_its_readings(
    tmp_path: Path, corpus: Corpus, capsys: Any
) -> None:
    words = ["crammed", *(word for word in MODEL if not word.startswith("budget."))]
    words.append("budget.most_epochs=2")
    cost = {}
    for budget in ("1e14flop", "1e15flop"):
        masking(tmp_path, corpus, budget, words=words)
        cost[budget] = json.loads(capsys.readouterr().out)["masking"]["seconds"]
    assert cost["1e15flop"] == pytest.approx(cost["1e14flop"])
    assert cost["1e14flop"] < 0.01 * 16 * 1e14 / 1e9


def config(budget: str, *words: str) -> RunConfig:
    return load_config("crammed-2022", [f"budget.limit={budget}", *words])


def test_seconds_follow_from_the_kind_of_budget() -> None:
    def seconds(asked: RunConfig, rows: int | None = None) -> float:
        return Timing(SILENT).training(asked, rows)

    assert seconds(config("90m")) == 5400.0
    assert seconds(config("1e18flop")) == pytest.approx(1e9)
    tokens = seconds(config("1e9tok"))
    assert tokens == pytest.approx(0.623e9, rel=0.01)
    assert seconds(config("1e9tok"), 1000) == tokens
    read = config("1e9tok", "budget.most_epochs=2")
    assert seconds(read) == tokens
    assert seconds(read, 1000) == pytest.approx(tokens * 2 * 1000 * 128 / 1e9)
    updates = seconds(config("1000updates", "batch.ramp=0"))
    assert updates == pytest.approx(tokens * 1000 * 8192 * 128 / 1e9)


def test_a_study_that_is_refused_does_not_hide_what_the_others_cost(
    tmp_path: Path, corpus: Corpus, capsys: Any
) -> None:
    words = ["model.max_length=32", "finetune.max_length=32"]
    options: dict[str, Any] = {"words": words, "corpus": corpus.path, "data": None}
    options["dry_run"] = True
    refused = "refused: data, vocabulary; the reasons are printed above"
    with pytest.raises(TaskFailed, match=refused):
        every(tmp_path, **options)
    said = json.loads(capsys.readouterr().out)
    assert {name for name, cost in said.items() if "refused" in cost} == OWN
    with pytest.raises(TaskFailed, match=refused):
        every(tmp_path, **{**options, "as_json": False})
    *_, vocabulary, whole = capsys.readouterr().out.splitlines()
    assert vocabulary.split()[:3] == ["vocabulary", "refused:", "tokenizer.vocab_size=32768"]
    assert " 183 arms, 366 of 366 runs to go, about " in whole
    with pytest.raises(InputError, match=r"data\.orders="):
        every(tmp_path, name="data", **options)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of studies, none of which trains anything."""
    calls: list[Any] = []

    def run(call: Request, progress: Progress) -> StudyResult:
        calls.append(call)
        if call.name == "masking":
            raise InputError("arm masks-15: no memory")
        if call.corpus is None:
            write_json(call.out / "corpora" / "base" / "manifest.json", {})
        good = {"loss@0.15": 4.0, "tokens": 1, "seconds": 1.0}
        runs = {"0": {"failed": "no memory"} if call.name == "batch" else good}
        arms = {"a": {"words": [], "runs": runs}}
        return StudyResult.model_validate({"baseline": "a", "arms": arms})

    monkeypatch.setattr("crammed.study.running.request.run", run)
    monkeypatch.setattr("crammed.report.study.write_study_page", lambda _, page, *__: page)
    return calls


FAULTS = (
    r"masking was refused \(arm masks-15: no memory\); 1 of 11 runs failed: batch: a, seed 0; the"
)


def test_every_study_runs_in_its_folder_and_failures_are_said_at_the_end(
    tmp_path: Path, ran: list[Any], capsys: Any
) -> None:
    with pytest.raises(TaskFailed, match=FAULTS):
        every(tmp_path)
    assert [call.name for call in ran] == study_names()
    assert all(call.out == tmp_path / "out" / call.name for call in ran)
    said = json.loads(capsys.readouterr().out)
    assert sorted(said) == study_names()
    assert said.pop("masking") == {"refused": "arm masks-15: no memory"}
    for name, result in said.items():
        assert result["report"] == str(tmp_path / "out" / name / "report.html")
        assert [row["arm"] for row in result["compared"]] == ["a"]


def test_studies_share_the_corpus_that_the_first_prepared(tmp_path: Path, ran: list[Any]) -> None:
    with pytest.raises(TaskFailed):
        every(tmp_path)
    first, *others = ran
    assert (first.name, first.corpus, len(first.texts)) == ("ablation", None, 1)
    shared = tmp_path / "out" / "ablation" / "corpora" / "base"
    assert {call.name for call in others if call.corpus is None} == OWN
    assert all(call.corpus == shared and not call.texts for call in others if call.name not in OWN)


def test_what_was_prepared_is_kept_where_the_first_study_is_refused(
    tmp_path: Path, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it is not refused any more, it takes what another has prepared."""
    run, refused = crammed.study.running.request.run, ["ablation"]

    def refusing(call: Request, progress: Progress) -> StudyResult:
        if call.name in refused:
            raise InputError("arm plain: no memory")
        return run(call, progress)

    monkeypatch.setattr("crammed.study.running.request.run", refusing)
    monkeypatch.setattr(studies, "_say_costs", lambda *_, **__: None)
    shared = tmp_path / "out" / "architecture" / "corpora" / "base"
    for _ in range(2):
        with pytest.raises(TaskFailed):
            every(tmp_path)
        assert {call.name for call in ran if call.corpus is None} == {"architecture", *OWN}
        assert {call.corpus for call in ran} == {None, shared}
        ran.clear()
        refused.clear()


def test_the_cost_is_said_before_anything_runs(
    tmp_path: Path, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "crammed.terminal.progress.Progress.line", lambda _, text: said.append(text)
    )
    with pytest.raises(TaskFailed):
        every(tmp_path)
    aside = ("  refused: ", "measuring  ")
    *each, whole = (line for line in said if not any(other in line for other in aside))
    assert [line.partition(" ")[0] for line in each] == study_names()
    assert "main  18 arms, 36 of 36 runs to go, about " in "\n".join(each)
    assert whole.startswith("all  206 arms, 412 of 412 runs to go, about ")
