"""How fast training is on a device, by a clock that the test moves and by the real one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from crammed.config import RunConfig
from crammed.machine.device import Device
from crammed.planning import speed
from crammed.planning.speed import Measured, training_speed
from crammed.rules.sizing import flops_per_token
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.costs import timed_config
from support.text import FakeClock

A_ROW, AN_UPDATE = 0.01, 0.5
"""Seconds that the gradients of a row take, and the rest of an update."""


class Machine:
    """Trains by its own clock, some times slower while something else holds it.

    Attributes:
        rested: for how long measuring has rested, each time.
    """

    def __init__(self, times: float = 1.0, held: Callable[[float], bool] = lambda now: True):
        self.clock, self.times, self.held = FakeClock(), times, held
        self.rested: list[float] = []
        self.began = self.clock.now

    def work(self, seconds: float) -> None:
        while seconds > 1e-9:
            step = min(0.01, seconds)
            self.clock.now += step * (self.times if self.held(self.clock.now - self.began) else 1)
            seconds -= step

    def rest(self, seconds: float) -> None:
        self.clock.now += seconds
        self.rested.append(seconds)

    def gradients(self, step: TrainStep, rows: torch.Tensor, *_: object) -> None:
        self.work(A_ROW * len(rows))

    def measure(self, config: RunConfig, device: Device, patch: pytest.MonkeyPatch) -> float:
        """How often it computes the FLOPs of `config` in the time that it takes when free."""
        free = _flops(config) / (A_ROW * config.batch.rows + AN_UPDATE)
        patch.setattr(speed, "nominal_speed", lambda compute: 3 * free)
        patch.setattr(TrainStep, "gradients", lambda *given: self.gradients(*given))
        patch.setattr(TrainStep, "apply", lambda *_: self.work(AN_UPDATE))
        return training_speed(config, device, self.clock, self.rest).speed / free


def _flops(config: RunConfig) -> float:
    return flops_per_token(config) * config.data.row_length * config.batch.rows


def config(*words: str, budget: str = "10m") -> RunConfig:
    return timed_config("batch.rows=64", *words, budget=budget)


def test_large_batches_are_not_measured_whole(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, machine = config("batch.rows=4096"), Machine()
    assert machine.measure(asked, cpu, monkeypatch) == pytest.approx(1.0)
    assert machine.clock.now - machine.began < 4.0
    compiled = dataclasses.replace(cpu, compile=True)
    assert machine.measure(asked, compiled, monkeypatch) == pytest.approx(1.3)


def test_a_model_that_grows_is_measured_with_all_of_its_layers(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, depths = Machine(), set[int]()

    def gradients(step: TrainStep, rows: torch.Tensor, _: Update) -> None:
        depths.add(step.growth.layers)
        machine.work(A_ROW * len(rows))

    monkeypatch.setattr(machine, "gradients", gradients)
    asked = config("model.layers=4", "train.grow_at=[0.5]", "model.value_embeddings=false")
    machine.measure(asked, cpu, monkeypatch)
    assert depths == {4}


def test_second_passes_count_as_often_as_they_come(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, asked = Machine(), config("optim.name=library", "optim.of=SophiaH")

    def gradients(_: TrainStep, rows: torch.Tensor, update: Update) -> None:
        machine.work(asked.passes_per_update(update.number) * A_ROW * len(rows))

    monkeypatch.setattr(machine, "gradients", gradients)
    once = 64 * A_ROW  # and once more in one of ten updates
    expected = (once + AN_UPDATE) / (1.1 * once + AN_UPDATE)
    assert machine.measure(asked, cpu, monkeypatch) == pytest.approx(expected)


def test_what_warms_up_is_not_counted(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(9.0, lambda now: now == 0.0)
    assert machine.measure(config(), cpu, monkeypatch) == pytest.approx(1.0)
    assert not machine.rested


def test_a_stall_does_not_count(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that covers the whole first measurement, warming up included."""
    machine = Machine(16.0, lambda now: now < 42.0)
    assert machine.measure(config(), cpu, monkeypatch) == pytest.approx(1.0)
    assert machine.rested == [1.0]


def test_a_machine_that_is_slow_throughout_is_slow(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(16.0)
    assert machine.measure(config(), cpu, monkeypatch) == pytest.approx(1 / 16)
    assert 1 <= len(machine.rested) <= 2


def test_pieces_that_disagree_are_measured_again(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device far above its nominal speed may be held up as well."""
    monkeypatch.setattr(speed, "_PLAUSIBLE", 0.0)
    machine = Machine(3.0, lambda now: 0.5 < now < 3.5)
    assert machine.measure(config(), cpu, monkeypatch) == pytest.approx(1.0)
    assert machine.rested


@pytest.mark.parametrize(("budget", "rests"), [("30s", 1), ("10s", 0), ("1e9tok", 1)])
def test_a_short_budget_has_little_patience(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, budget: str, rests: int
) -> None:
    machine = Machine()
    monkeypatch.setattr(speed, "_PLAUSIBLE", math.inf)
    machine.measure(config("batch.rows=8", budget=budget), cpu, monkeypatch)
    assert len(machine.rested) == rests


class Shared(Machine):
    """Beside other work until a moment: two threads take 16 times as long, and one twice."""

    def __init__(self, until: float) -> None:
        super().__init__(16.0, lambda now: now < until)
        self.threads, self.waited = 2, 0.0

    def work(self, seconds: float) -> None:
        began = self.clock.now
        self.times = 16.0 if self.threads > 1 else 2.0
        super().work(seconds)
        if self.held(began - self.began):
            self.waited += 0.4 * (self.clock.now - began)

    def share(self, config: RunConfig, device: Device, patch: pytest.MonkeyPatch) -> Measured:
        patch.setattr(speed, "core_waits", lambda: {"1": 5.0, "2": self.waited})
        patch.setattr(torch, "get_num_threads", lambda: self.threads)
        patch.setattr(torch, "set_num_threads", lambda count: setattr(self, "threads", count))
        patch.setattr(speed, "_PLAUSIBLE", 0.0)
        self.measure(config, device, patch)
        self.began = self.clock.now
        return training_speed(config, device, self.clock, self.rest)


@pytest.mark.parametrize(("until", "busy", "times"), [(42.0, False, 1.0), (1e9, True, 2.0)])
def test_a_busy_machine_is_measured_when_the_load_has_gone_or_with_one_thread(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, until: float, busy: bool, times: float
) -> None:
    machine, asked = Shared(until), config()
    found = machine.share(asked, cpu, monkeypatch)
    free = _flops(asked) / (A_ROW * asked.batch.rows + AN_UPDATE)
    assert found.busy == busy
    assert free / found.speed == pytest.approx(times)
    assert machine.threads == 2


def test_a_real_device_is_measured_in_a_moment(cpu: Device) -> None:
    assert 1e6 < training_speed(config(budget="2s"), cpu).speed < 1e13
