"""A run whose text has been read often enough ends, whatever its budget, and says so."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crammed.budget import Budget, Ledger, Limits, Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError, Interrupted
from crammed.interface.lines import run_lines
from crammed.machine.device import Device
from crammed.model.count import block_matrix_parameters
from crammed.planning.forecast import forecast
from crammed.planning.parts import PartTimes
from crammed.planning.settling import announce
from crammed.pretraining import result, train_and_export
from crammed.report.page import write_report
from crammed.rules.choosing import Asked, Choice, choose
from crammed.rules.early_end import EarlyEnd, ended_short
from crammed.rules.recipe import ask
from crammed.rules.sizing import (
    FOLLOWERS,
    MOST_EPOCHS,
    expected_seconds,
    expected_tokens,
    follow_budget,
    tokens_per_parameter,
    with_values,
)
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_metrics
from crammed.study.spec.arms import load_study
from crammed.terminal.progress import SILENT, Progress
from crammed.training.heldout_meter import rows_on_the_way
from crammed.training.loop import pretrain
from crammed.training.plan import Planner
from crammed.training.update.planned import Update
from support.text import FakeClock, tiny

BUDGETS = ("1000h", "1e12tok", "1000000updates", "1e18flop")
"""Of each kind, so large that only the length of the text ends a run of a test."""
EPOCHS = 0.25
"""How often the runs here may read their text, so that they are short."""


def of_text(budget: str, epochs: float | str = EPOCHS, *words: str) -> RunConfig:
    most = f"budget.most_epochs={epochs}"
    return tiny("crammed", most, "train.heldout_every=null", *words, budget={"limit": budget})


def weights(config: RunConfig, corpus: Corpus, out: Path, cpu: Device) -> dict[str, torch.Tensor]:
    """What training gives, by a clock that hardly moves."""
    with RunDir.open(out, config) as run:
        trained = pretrain(config, corpus, run, cpu, SILENT, FakeClock(1e-9))
    return {name: each.detach() for name, each in trained.model.named_parameters()}


# ---- progress


@given(
    kind=st.sampled_from(["time", "tokens", "updates", "flops"]),
    limit=st.floats(1.0, 1e12),
    most=st.one_of(st.just(float("inf")), st.floats(1.0, 1e12)),
    parts=st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(0.0, 1e9), st.floats(0.0, 1e9)),
        min_size=2,
        max_size=9,
    ),
)
def test_progress_is_the_share_of_the_nearer_limit_and_never_falls(
    kind: Any, limit: float, most: float, parts: list[tuple[int, float, float]]
) -> None:
    budget = Budget(kind, limit, "")
    limits, work, seconds, before = Limits(budget, most), Work(), 0.0, 0.0
    for tokens, flops, more in parts:
        work, seconds = work + Work(1, 1, tokens, flops), seconds + more
        u = limits.progress(work, seconds)
        assert u >= before
        assert (u < 1.0) == (budget.spent(work, seconds) < limit and work.tokens < most)
        assert u == max(budget.share(work, seconds), work.tokens / most)
        before = u
    assert Limits(budget).progress(work, seconds) == budget.share(work, seconds)


def played(config: RunConfig, rows: int, seconds: float) -> Iterator[tuple[Update, Work, Planner]]:
    """The updates of a run in which each row takes so many seconds, and the work after each."""
    clock, work = FakeClock(), Work()
    ledger = Ledger(("step",), clock)
    planner = Planner(config, 256, rows, ledger)
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            clock.now += seconds * update.rows
            work += update.cost
            planner.deadline.end(update.rows)
            yield update, work, planner


@given(
    budget=st.sampled_from(["40s", "30000tok", "90updates", "1e11flop"]),
    epochs=st.floats(0.5, 20.0),
    rows=st.integers(16, 300),
    batch=st.sampled_from([4, 16]),
    ramp=st.sampled_from([0.0, 0.7]),
    seconds=st.floats(0.001, 0.1),
)
def test_a_run_ends_at_the_nearer_limit_with_the_rate_at_its_end(
    budget: str, epochs: float, rows: int, batch: int, ramp: float, seconds: float
) -> None:
    grows = (f"batch.rows={batch}", f"batch.ramp={ramp}", "batch.quantum=4")
    config = of_text(budget, epochs, *grows, "model.embedding_start=random")
    before = 0.0
    for update, work, planner in played(config, rows, seconds):
        u = planner.progress(work)
        assert before <= u <= 1.0 + 1e-9
        assert work.tokens <= config.most_tokens(rows)
        assert update.rows == config.batch.rows_at(before)  # a growing batch follows, too
        if update.number > 0:  # the pace of the first is not known
            assert update.factor == pytest.approx(config.schedule((before + u) / 2), abs=1e-6)
        before, following = u, config.batch.rows_at(u)
        flops = update.cost.flops * following / update.rows
        one = planner.limits.progress(
            Work(1, following, following * 32, flops), seconds * following
        )
    assert before == 0.0 or 1.0 - before <= one + 1e-6  # less than an update is left


# ---- the loop


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_kind_of_budget_ends_with_the_weights_of_so_many_tokens(
    tmp_path: Path, corpus: Corpus, cpu: Device, budget: str
) -> None:
    grows = ["batch.rows=16", "batch.ramp=0.5", "batch.quantum=4", "model.dropout=0.1"]
    if budget == "1000h":  # which decides by itself how many rows the embeddings begin with
        grows.append("model.embedding_start=random")
    tokens = of_text("1h").most_tokens(corpus.rows)
    enough = of_text(f"{tokens}tok", "null", *grows)
    expected = weights(enough, corpus, tmp_path / "tokens", cpu)
    found = weights(of_text(budget, EPOCHS, *grows), corpus, tmp_path / "early", cpu)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    last, other = (read_metrics(tmp_path / name)[-1] for name in ("early", "tokens"))
    assert last["update"] == other["update"]
    assert last["u"] == pytest.approx(other["u"], abs=1e-6)
    assert last["u"] > 0.95


def test_a_run_that_was_stopped_ends_where_it_would_have(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = of_text("1000000updates", EPOCHS, "train.log_seconds=1e-9")
    whole = weights(config, corpus, tmp_path / "whole", cpu)
    append = RunDir.metrics

    def stop_at_nine(run: RunDir, record: dict[str, Any]) -> None:
        append(run, record)
        if record["update"] == 9:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "metrics", stop_at_nine)
        with pytest.raises(Interrupted):
            weights(config, corpus, tmp_path / "stopped", cpu)
    saved = json.loads((tmp_path / "stopped" / "config.json").read_text())
    assert saved["budget"]["most_epochs"] == EPOCHS
    again = weights(config, corpus, tmp_path / "stopped", cpu)
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_text_for_less_than_an_update_is_refused(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    with pytest.raises(
        InputError, match=r"8 rows would read .* more often than budget\.most_epochs allows"
    ):
        weights(of_text("1h", 1e-6), corpus, tmp_path / "run", cpu)


def test_configurations_of_older_versions_end_with_their_budget() -> None:
    saved = tiny().model_dump(mode="json")
    del saved["budget"]["most_epochs"]
    assert RunConfig.model_validate(saved) == tiny()
    assert tiny().most_tokens(1) == float("inf")
    for recipe in ("crammed", "demo"):
        assert ask(recipe).config.budget.most_epochs is not None
    assert ask("crammed", ["budget.most_epochs=null"]).config.budget.most_epochs is None


# ---- what is said


def trained(
    config: RunConfig, corpus: Corpus, cpu: Device, out: Path, lost: float = 0.0
) -> tuple[list[str], dict[str, Any]]:
    """The lines that a run logs, and what is printed when it has ended.

    Args:
        lost: seconds of the budget that went to a process that was killed.
    """
    said = io.StringIO()
    with RunDir.open(out, config) as run, Progress(said) as progress:
        if lost:
            run.heartbeat(lost)
        train_and_export(run, corpus, cpu, progress)
    return said.getvalue().splitlines(), result(out)


def test_it_is_said_before_and_after_and_kept(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    tokens = corpus.rows * corpus.row_length
    config = of_text(f"{tokens}tok")  # four times what may be read
    said, printed = trained(config, corpus, cpu, tmp_path / "run")
    foreseen, over = (line for line in said if line[:7] == "corpus ")
    assert foreseen.startswith("corpus  is read 0.25 times (budget.most_epochs), so the run ends ")
    assert over.startswith("corpus  was read 0.247 times (budget.most_epochs), so the run ended ")
    early = EarlyEnd(**printed["early_end"])
    assert early.share == pytest.approx(0.25, abs=0.01)
    assert early.text_tokens == tokens
    assert early.text_bytes == pytest.approx(corpus.manifest["characters"])  # which is all ASCII
    for words in (foreseen, over):
        assert f" of {config.budget.limit}; the whole budget could use 4" in words
        assert " times as much text (" in words
        assert words.endswith("kB)")
    lines = dict(run_lines(printed))
    assert f"{100 * early.share:.1f} % of " in lines["trained on"]
    assert lines["corpus"] == early.words(over=True)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert early.words(over=True) in page
    assert f"<b>{100 * early.share:.1f} %</b>" in page


def announced(config: RunConfig, corpus: Corpus, cpu: Device, speed: float | None) -> str:
    said = io.StringIO()
    announce(config, Choice(flops_per_second=speed), corpus, cpu, Progress(said))
    return said.getvalue()


def test_a_budget_of_time_foretells_its_end_from_a_measured_speed(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, speed = of_text("1h", 2.0), 1e9
    lasts = 3600 * config.most_tokens(corpus.rows) / expected_tokens(config, speed)
    words = announced(config, corpus, cpu, speed)
    assert "corpus  is read 2 times (budget.most_epochs), so the run ends after about" in words
    assert f"about {Budget('time', lasts, '')} of 1h; the whole budget could use" in words
    assert "corpus  " not in announced(config, corpus, cpu, 1e5)
    monkeypatch.setattr("crammed.rules.sizing.nominal_speed", lambda compute: 1e14)
    guess = announced(config, corpus, cpu, None)
    assert "corpus  ends the run when it has been read 2 times, if the budget lasts that" in guess


@pytest.mark.parametrize(
    ("share", "times"), [(0.5, "2 times"), (0.011, "90.9 times"), (0.0004, "2,500 times")]
)
def test_how_much_text_could_be_used(share: float, times: str) -> None:
    early = EarlyEnd.of(of_text("500updates"), 1000, None, 16.0, share)
    assert early is not None
    assert f"; the whole budget could use {times} as much text (" in early.words(over=True)


@pytest.mark.parametrize("share", [0.0, 0.9951, 1.0, 3.0])
def test_a_budget_that_is_spent_is_no_early_end(share: float) -> None:
    assert EarlyEnd.of(of_text("1h"), 1000, None, 16.0, share) is None


def test_a_run_that_ends_short_says_so_everywhere(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config = of_text(f"{int(3.5 * 256)}tok", "null")  # an update reads 256
    said, printed = trained(config, corpus, cpu, tmp_path / "run")
    words = printed["ended_short"]
    assert words.startswith("training ended at 86 % of its schedule, before the learning rate had")
    assert words.endswith("the 128 tokens left of 896 tokens; raise the budget or lower batch.rows")
    assert f"note  {words}" in said
    assert ("note", words) in run_lines(printed)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert words[1:] in page


def test_a_run_that_reaches_the_end_of_its_schedule_does_not_end_short() -> None:
    config, early = of_text("1m"), EarlyEnd.of(of_text("1m"), 1000, None, 16.0, 0.5)
    for u, begun, ending in (
        (1.0, 0.0, None),
        (0.951, 0.0, None),
        (0.996, 0.9, None),
        (0.5, 0.0, early),
    ):
        assert ended_short(config, u, begun, ending) is None
    late = ended_short(config, 0.96, 0.9, None)
    assert late is not None
    assert late.startswith("training ended at 60 % of its schedule")
    words = ended_short(config, 0.7, 0.0, None)
    assert words is not None
    assert "into the 18s left of 1m; " in words
    assert words.endswith("lower batch.rows and run nothing beside it")


def test_a_run_that_lost_much_of_its_budget_says_so(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    said, printed = trained(of_text("6s", "null"), corpus, cpu, tmp_path / "run", lost=3.0)
    words = printed["ended_short"]
    assert words.startswith("3s of its 6s went to work that was lost, and only the rest to this")
    assert f"note  {words}" in said
    assert ("note", words) in run_lines(printed)
    assert words in write_report([tmp_path / "run"], tmp_path / "report.html").read_text()


def test_only_time_that_is_charged_is_lost() -> None:
    config = of_text("1m")
    assert ended_short(config, 1.0, 0.9, None, 2.9) is None
    words = ended_short(config, 0.7, 0.0, None, 4.0)
    assert words is not None
    assert "nothing beside it; 4s of its 1m went to work" in words
    assert ended_short(config, 1.0, 0.9, EarlyEnd.of(config, 1000, None, 16.0, 0.5), 4.0) is None
    for other in (of_text("5updates"), of_text("1m", EPOCHS, "budget.charge=[step]")):
        assert ended_short(other, 1.0, 0.0, None, 4.0) is None


# ---- what is planned


def test_the_forecast_ends_where_the_run_does() -> None:
    speed = PartTimes(update=0.5, row=0.01, compile=2.0, memory=None, microbatch_rows=8, low=0.5)
    planned = forecast(of_text("1h", 2.0), 256, 400, speed)
    assert (planned["updates"], planned["epochs"]) == (100, 2.0)
    assert planned["tokens"] == 100 * 8 * 32
    assert planned["seconds"] == pytest.approx(2 + 100 * 0.58)
    assert planned["tokens_between"] == [planned["tokens"]] * 2
    assert planned["early_end"]["share"] == pytest.approx(60 / 3600)
    (note,) = (note for note in planned["notes"] if "text" in note)
    assert note.startswith("the corpus is read 2 times (budget.most_epochs), so the run ends after")
    uneven = forecast(of_text("2m", 3.0), 256, 400, replace(speed, high=2.0))
    read, share = uneven["tokens"], uneven["early_end"]["share"]
    assert share > 0.5  # so that at half the speed the budget ends before the text
    assert uneven["tokens_between"] == [round(read / share / 2), read]
    assert forecast(of_text("1h", 2.0), 256, None, speed)["epochs"] is None


def test_the_batch_follows_the_tokens_that_are_read() -> None:
    free = with_values(ask("crammed").config, {"budget.limit": "24h", "budget.most_epochs": None})
    ends = with_values(free, {"budget.most_epochs": 16.0})
    rows = 300_000 // 128
    long, short = (follow_budget(config, FOLLOWERS, 1e11, rows) for config in (free, ends))
    assert block_matrix_parameters(long.model) == block_matrix_parameters(short.model)
    enough = with_values(free, {"budget.limit": f"{16 * rows * 128}tok"})
    assert short.batch.rows == follow_budget(enough, FOLLOWERS, 1e11, rows).batch.rows
    assert short.batch.rows < long.batch.rows
    assert follow_budget(ends, FOLLOWERS, 1e11) == with_values(
        follow_budget(free, FOLLOWERS, 1e11), {"budget.most_epochs": 16.0}
    )


@given(epochs=st.floats(0.1, 100.0), rows=st.integers(10, 10**8), flops=st.floats(1e8, 1e15))
def test_the_size_gets_its_tokens_before_the_text_ends_the_run(
    epochs: float, rows: int, flops: float
) -> None:
    config = with_values(
        ask("crammed").config, {"budget.limit": "1h", "budget.most_epochs": epochs}
    )
    chosen = choose(Asked(config, FOLLOWERS), rows, lambda _: flops).config
    if chosen.model.layers * chosen.model.width > 128:  # not the smallest
        read = expected_tokens(chosen, flops, rows)
        weights = block_matrix_parameters(chosen.model)
        wanted = 0.995 * tokens_per_parameter(weights) * weights
        assert read >= wanted
        assert MOST_EPOCHS * rows * 128 >= wanted


def test_short_text_makes_a_run_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crammed.rules.sizing.nominal_speed", lambda compute: 1e11)
    config = of_text("1h", 16)
    assert expected_seconds(config) == expected_seconds(config, 10**9) == 3600
    ends = expected_seconds(config, 1000)  # by which it is decided whether compiling pays
    assert ends == pytest.approx(3600 * 16 * 1000 * 32 / expected_tokens(config))
    wanted = with_values(config, {"data.heldout_rows": 2000})
    assert rows_on_the_way(wanted, 1e11, 1000) < rows_on_the_way(wanted, 1e11)


def test_all_arms_of_a_study_end_alike(tmp_path: Path, corpus: Corpus) -> None:
    file = tmp_path / "s.yaml"
    budget = Budget.parse("1h")

    def written(base: list[str], *own: str) -> str:
        arms = {"plain": [], "other": list(own)}
        file.write_text(json.dumps({"base": base, "baseline": "plain", "arms": arms}))
        return str(file)

    def ends(base: list[str], *own: str) -> set[float | None]:
        study = load_study(written(base, *own), corpus, budget)
        return {
            ask(recipe, words).config.budget.most_epochs
            for recipe, *words in map(study.words, study.arms)
        }

    assert ends(["crammed"], "crammed-2022") == {ask("crammed").config.budget.most_epochs}
    assert ends(["crammed-2022"], "crammed") == {None}
    assert ends(["crammed", "budget.most_epochs=3"], "bert-base") == {3.0}
    for own in (
        ["budget.most_epochs=2"],
        ["budget={most_epochs: 2}"],
        ["izsak", "budget.most_epochs=2"],
    ):
        with pytest.raises(InputError, match=r"arm other: budget\.most_epochs is the same in all"):
            load_study(written(["crammed"], *own), corpus, budget)
