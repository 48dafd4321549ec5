"""Measuring the parts of a run, by a clock that the test moves and by the real one."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from crammed.data.corpus import Corpus, RowStream
from crammed.machine.device import Device
from crammed.planning.parts import PartTimes, measure_speed
from crammed.terminal.progress import SILENT, Progress
from crammed.training.update.build import new_model
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.costs import play_costs
from support.costs import timed_config as config
from support.text import FakeClock

SPEED = PartTimes(update=0.5, row=0.01, compile=2.0, memory=None, microbatch_rows=8)


@pytest.mark.parametrize("rate", [None, "masking.final_rate=0.125", "objective.name=causal-first"])
def test_measuring_finds_what_things_take(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch, rate: str | None
) -> None:
    clock = FakeClock()
    truth = PartTimes(0.2, 0.01, 3.0, None, 8, 0.002 if rate else 0.0, 0.7, 3.0, 0.03, 4.0, 1.5)
    play_costs(monkeypatch, clock, truth)
    charge = "budget.charge=[step,checkpoint,log,evaluate]"
    asked = config("batch.rows=64", charge, *([rate] if rate else []), budget="30m")
    found = measure_speed(asked, corpus, cpu, 20.0, SILENT, clock)
    for rows, predicted in ((64, 8), (64, 4), (3, 8), (64, 32)):
        wanted = truth.seconds(rows, predicted) if rate else truth.seconds(rows)
        assert found.seconds(rows, predicted) == pytest.approx(wanted)
    for name in ("compile", "first_compile", "first", "log", "evaluate"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name)), name
    assert found.checkpoint == pytest.approx(truth.checkpoint + truth.log)  # with a heartbeat each
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_what_is_measured_is_what_a_run_trains(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights, zeros included, on a corpus that is not there yet."""
    asked = config(
        "model.zero_outputs=true", "model.embedding_start=random", "seed=3", budget="60s"
    )
    seen: list[dict[str, torch.Tensor]] = []

    def look(step: TrainStep, *_: object) -> None:
        seen.append({name: p.detach().clone() for name, p in step.model.named_parameters()})

    monkeypatch.setattr(TrainStep, "prepare", look)
    measure_speed(asked, None, cpu, 0.0, SILENT)
    trained = dict(new_model(asked, 256, cpu.torch).named_parameters())
    assert seen[0].keys() == trained.keys()
    assert all(torch.equal(weight, trained[name]) for name, weight in seen[0].items())
    assert not seen[0]["encoder.layers.0.ffn.down.weight"].any()


def test_measuring_reads_onwards(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = FakeClock(), []
    play_costs(monkeypatch, clock, SPEED)

    def note(_: RowStream, start: int, count: int) -> NDArray[np.int64]:
        read.append((start, count))
        return np.zeros((count, 32), np.int64)

    monkeypatch.setattr(RowStream, "read", note)
    asked = config("batch.rows=64", "model.embedding_start=random", budget="60s")
    measure_speed(asked, corpus, cpu, 5.0, SILENT, clock)
    assert {count for _, count in read} == {32, 64}
    assert [start for start, _ in read] == [0, *np.cumsum([count for _, count in read])[:-1]]


def test_compiling_is_measured_cold_and_warm(monkeypatch: pytest.MonkeyPatch, cpu: Device) -> None:
    compiled = replace(cpu, compile=True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    clock, takes = FakeClock(tick=0.001), iter((9.0, 2.0))

    def prepare(*_: object) -> None:
        clock.now += next(takes)

    monkeypatch.setattr(TrainStep, "prepare", prepare)
    said = io.StringIO()
    speed = measure_speed(config(budget="60s"), None, compiled, 0.0, Progress(said), clock)
    assert "compiling comes first, which can take minutes" in said.getvalue()
    assert (speed.first_compile, speed.compile) == pytest.approx((9.0, 2.0), abs=0.01)


SOPHIA = ("optim.name=library", "optim.of=SophiaH", "model.embedding_start=random")


def test_an_optimizer_gets_the_curvature_when_it_asks_for_it(cpu: Device) -> None:
    asked = config(*SOPHIA, "optim.options.update_period=3", budget="60s")
    assert measure_speed(asked, None, cpu, 0.0, SILENT).seconds(8) > 0.0


def test_second_passes_count_as_often_as_they_come(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    play_costs(monkeypatch, clock, SPEED)
    asked = config("batch.rows=64", *SOPHIA, "optim.options.update_period=2", budget="60s")
    once = TrainStep.gradients

    def gradients(step: TrainStep, rows: torch.Tensor, update: Update) -> torch.Tensor:
        if asked.measures_curvature(update.number):
            once(step, rows, update)
        return once(step, rows, update)

    monkeypatch.setattr(TrainStep, "gradients", gradients)
    # In 23 seconds, each case has four updates with a second pass, and four without.
    found = measure_speed(asked, None, cpu, 23.0, SILENT, clock)
    for rows in (3, 64):
        assert found.seconds(rows) == pytest.approx(1.5 * SPEED.seconds(rows))
