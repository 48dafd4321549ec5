"""A whole training: where it ends, its rates, what it logs and measures, what it refuses."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.budget import Budget, Ledger, Work
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.count import train_flops_per_token
from crammed.optim.build import update_flops
from crammed.runs.logs import read_metrics
from crammed.training.heldout_meter import FEWEST_ROWS, MOST_ROWS, rows_on_the_way
from crammed.training.plan import Planner
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.steps import after_gradients, same
from support.text import FakeClock, tiny
from support.training import events, train


@pytest.mark.parametrize(
    ("limit", "updates"),
    [("5updates", 5), ("1300tok", 5), ("1279tok", 4), ("1280tok", 5)],
)
def test_a_budget_of_work_ends_at_the_last_update_that_fits(
    tmp_path: Path, corpus: Corpus, cpu: Device, limit: str, updates: int
) -> None:
    trained = train(tiny(budget={"limit": limit}), corpus, tmp_path / "run", cpu)
    assert trained.work.updates == updates
    assert trained.work.tokens == updates * 8 * 32
    assert trained.u <= 1.0


def test_a_budget_of_flops_counts_analytic_flops(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    words = ("crammed", "model.embedding_start=random", "masking.rate=0.25")
    plain = tiny(*words)
    one = 8 * 32 * train_flops_per_token(plain.model, corpus.vocab_size, 32, 8)
    one += update_flops(plain.model, corpus.vocab_size, plain.optim)
    config = tiny(*words, budget={"limit": f"{3.5 * one}flop"})
    trained = train(config, corpus, tmp_path / "run", cpu)
    assert trained.work.updates == 3
    assert trained.work.flops == pytest.approx(3 * one)


@settings(max_examples=8, deadline=None)
@given(tick=st.floats(0.05, 0.2), limit=st.integers(20, 40))
def test_a_budget_of_time_ends_within_one_update_and_never_beyond(
    tmp_path_factory: pytest.TempPathFactory, corpus: Corpus, cpu: Device, tick: float, limit: int
) -> None:
    config = tiny(budget={"limit": f"{limit}s"}, train={"heldout_every": None, "log_seconds": 9.0})
    clock = FakeClock(tick)
    out = tmp_path_factory.mktemp("time") / "run"
    trained = train(config, corpus, out, cpu, clock=clock)
    assert trained.work.updates > 0
    assert trained.charged_seconds <= limit
    assert trained.u == trained.charged_seconds / limit
    readings_an_update = 40  # more than the loop reads the clock for one update and its log point
    assert trained.charged_seconds >= limit - readings_an_update * tick


def test_an_update_that_is_not_complete_in_time_is_discarded(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(0.01)
    original = TrainStep.gradients

    def slow(self: TrainStep, rows: torch.Tensor, update: Update) -> torch.Tensor:
        clock.now += 50.0 if update.number == 3 else 1.0
        return original(self, rows, update)

    monkeypatch.setattr(TrainStep, "gradients", slow)
    config = tiny(budget={"limit": "30s"})
    trained = train(config, corpus, tmp_path / "run", cpu, clock=clock)
    assert trained.work.updates == 3
    assert trained.u < 1.0  # what is handed over was complete before the limit
    assert events(tmp_path / "run", "discarded")


def test_rates_follow_the_schedule_at_the_middle_of_each_update(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config = tiny(
        "crammed-2022",
        "train.log_seconds=1e-9",
        "batch.rows=16",
        "batch.ramp=0.5",
        "batch.quantum=4",
        "masking.rate=0.3",
        "masking.final_rate=0.15",
        budget={"limit": "8000tok"},
    )
    train(config, corpus, tmp_path / "run", cpu)
    records = read_metrics(tmp_path / "run")
    spent = 0
    for record in records:
        start = spent / 8000
        assert record["batch_rows"] == min(4 * (math.floor(start * 16 / (0.5 * 4)) + 1), 16)
        assert record["mask_rate"] == pytest.approx(0.3 - 0.05 * min(3, int(4 * start)))
        spent += record["batch_rows"] * 32
        middle = (start + spent / 8000) / 2
        assert record["lr"] == pytest.approx(1e-3 * config.schedule(middle))
        assert record["u"] == pytest.approx(spent / 8000)
    assert len({r["batch_rows"] for r in records}) == 4
    assert len({r["mask_rate"] for r in records}) == 4


def test_runs_repeat_bit_by_bit_and_seeds_differ(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    def weights(name: str, *overrides: str) -> list[torch.Tensor]:
        config = tiny("izsak", *overrides, budget={"limit": "6updates"})  # it has dropout
        return list(train(config, corpus, tmp_path / name, cpu).model.parameters())

    first, again, other = weights("a"), weights("b"), weights("c", "seed=1")
    assert same(first, again)
    assert not same(first, other)


def test_heldout_loss_is_measured_on_the_way(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny("crammed", "train.heldout_every=0.25", budget={"limit": "20updates"})
    train(config, corpus, tmp_path / "run", cpu)
    assert [event["u"] for event in events(tmp_path / "run", "heldout")] == [0.25, 0.5, 0.75]


def test_a_corpus_that_is_cut_off_leaves_a_checkpoint_to_go_on_from(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mine = tiny("crammed", budget={"limit": "6updates"}), tmp_path / "corpus"
    whole = train(config, corpus, tmp_path / "whole", cpu)
    shutil.copytree(corpus.path, mine)
    rows = mine / "rows-00000.bin"

    def cut(_: TrainStep, update: Update, loss: torch.Tensor) -> torch.Tensor:
        if update.number == 3:
            os.truncate(rows, 0)
        return loss

    with monkeypatch.context() as patch:
        after_gradients(patch, cut)
        with pytest.raises(InputError, match=r"rows-00000\.bin has 0 of .* bytes; restore it"):
            train(config, Corpus(mine), tmp_path / "run", cpu)
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]
    shutil.copy(corpus.path / rows.name, rows)
    again = train(config, Corpus(mine), tmp_path / "run", cpu)
    assert same(whole.model.parameters(), again.model.parameters())


def test_the_planner_stops_before_an_update_that_would_not_fit() -> None:
    clock = FakeClock()
    ledger = Ledger(("step",), clock)
    waited: list[float] = []
    config = tiny(budget={"limit": "100s"})
    planner = Planner(config, 256, 10**6, ledger, lambda: waited.append(clock.now))
    with ledger.account("step"):
        first = planner.next(Work())
        assert first is not None
        clock.now += 10.0
        planner.deadline.end(first.rows)
        assert waited == [100.0, 110.0]  # until the first is timed, nothing is known of the pace
        waited.clear()
        clock.now += 49.0
        assert planner.next(Work()) is not None
        assert planner.deadline.met()
        assert not waited  # after that, the device is waited for near the end only
        clock.now += 30.0
        assert planner.next(Work()) is not None
        assert planner.deadline.met()
        assert waited == [189.0, 189.0]
        assert planner.deadline.room_for(11.0)
        assert not planner.deadline.room_for(11.1)
        clock.now += 1.1
        assert planner.next(Work()) is None
    assert planner.limits.budget == Budget("time", 100.0, "100s")


def test_an_update_is_not_complete_before_the_optimizer_has_done_its_part() -> None:
    clock = FakeClock()
    ledger = Ledger(("step",), clock)
    planner = Planner(tiny(budget={"limit": "100.5s"}), 256, 10**6, ledger, lambda: None)
    with ledger.account("step"):
        for _ in range(9):  # four seconds for the gradients, and six for the optimizer
            update = planner.next(Work())
            assert update is not None
            clock.now += 4.0
            assert planner.deadline.met()
            clock.now += 6.0
            planner.deadline.end(update.rows)
        assert planner.next(Work()) is not None
        clock.now += 7.0
        assert not planner.deadline.met()


def test_metrics_carry_what_the_report_needs(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    train(tiny("crammed", budget={"limit": "3updates"}), corpus, tmp_path / "run", cpu)
    records = read_metrics(tmp_path / "run")
    assert records[0]["update"] == 1
    assert records[-1]["update"] == 3
    keys = {"u", "loss", "lr", "tokens", "tokens_per_s", "grad_norm", "t_charged_s", "t_wall_s"}
    assert keys <= records[0].keys()
    assert all(np.isfinite(v) for r in records for v in r.values())
    json.dumps(records, allow_nan=False)


def test_a_short_run_measures_on_few_rows_and_a_long_one_on_no_more_than_needed() -> None:
    found = [
        rows_on_the_way(tiny("crammed", f"budget.limit={n}updates", "data.heldout_rows=2000"))
        for n in (1, 1000, 10_000, 10**9)
    ]
    assert found[0] == FEWEST_ROWS
    assert found[-1] == MOST_ROWS
    assert found == sorted(found)
    assert rows_on_the_way(tiny("crammed", "data.heldout_rows=7")) == 7
