"""What a budget will buy: the plan played through, and the measuring before it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crammed.config import ComputeConfig, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.masking import predicted_positions
from crammed.device import Device, choose_device
from crammed.doctor import TINY
from crammed.model.count import train_flops_per_token
from crammed.progress import SILENT
from crammed.recipe import load_config
from crammed.rundir import RunDir
from crammed.training import checkpoint, loop
from crammed.training import forecast as train_forecast
from crammed.training.forecast import Speed, best_size, candidates, forecast, measure
from crammed.training.loop import pretrain
from crammed.training.plan import Update
from crammed.training.step import TrainStep
from support.command import crammed as command
from support.text import FakeClock, tiny

SPEED = Speed(update=0.5, row=0.01, compile=2.0, memory=None, microbatch_rows=8)


def config(*overrides: str, budget: str) -> RunConfig:
    return tiny("crammed", "batch.rows=8", "batch.ramp=0.0", *overrides, budget={"limit": budget})


def test_a_budget_of_time_is_filled_to_the_last_update() -> None:
    seconds = SPEED.seconds(8)
    assert seconds == pytest.approx(0.58)
    result = forecast(config(budget="60s"), 256, 1000, SPEED)
    assert result["updates"] == int((60 - 2) / seconds)
    assert result["tokens"] == result["updates"] * 8 * 32
    assert result["epochs"] == pytest.approx(result["updates"] * 8 / 1000)
    assert result["seconds"] == pytest.approx(2 + result["updates"] * seconds)
    assert result["notes"] == ["only 100 updates: lower batch.rows (8), or train a smaller model"]


def test_compiling_costs_nothing_where_the_rule_says_so() -> None:
    free = config("budget.charge=[step]", budget="60s")
    result = forecast(free, 256, None, SPEED)
    assert result["updates"] == int(60 / SPEED.seconds(8))
    assert result["tokens_per_second"] == pytest.approx(8 * 32 / SPEED.seconds(8))


def test_a_budget_of_work_says_how_long_it_takes() -> None:
    result = forecast(config(budget="250updates"), 256, None, SPEED)
    assert result["updates"] == 250
    assert result["seconds"] == pytest.approx(2 + 250 * SPEED.seconds(8))
    assert result["epochs"] is None
    assert result["notes"] == []


def test_a_ramp_is_played_through() -> None:
    ramp = config("batch.rows=64", "batch.ramp=1.0", "batch.quantum=8", budget="60s")
    flat = config("batch.rows=64", budget="60s")
    slow = Speed(0.0, 0.01, 0.0, None, 8)
    ramped, whole = (forecast(c, 256, None, slow) for c in (ramp, flat))
    assert ramped["updates"] > 1.3 * whole["updates"]
    assert ramped["tokens"] == pytest.approx(whole["tokens"], rel=0.05)


def test_what_will_not_go_well_is_said() -> None:
    assert "before one update" in forecast(config(budget="1s"), 256, None, SPEED)["notes"][0]
    few = forecast(config(budget="300updates"), 256, 100, SPEED)["notes"]
    assert few == ["the corpus is read 24.0 times: add text"]
    tight = forecast(config("batch.rows=16", budget="300updates"), 256, 12, SPEED)["notes"]
    assert "less than one batch" in tight[0]


def _costs(patch: pytest.MonkeyPatch, clock: FakeClock, speed: Speed) -> None:
    """Let training take the time of `speed` by this clock, and do nothing else."""

    def gradients(step: TrainStep, rows: torch.Tensor, update: Update, first: int = 0) -> object:
        predicted = predicted_positions(update.mask_rate, rows.shape[1])
        clock.now += speed.seconds(len(rows), predicted)
        if not hasattr(step, "warm"):
            clock.now += speed.first
            patch.setattr(step, "warm", True, raising=False)
        return torch.zeros(())

    def lasting(seconds: float, result: object) -> Callable[..., object]:
        def wait(*_: object, **__: object) -> object:
            clock.now += seconds
            return result

        return wait

    patch.setattr(TrainStep, "gradients", gradients)
    patch.setattr(TrainStep, "apply", lasting(0.0, torch.zeros(())))
    patch.setattr(TrainStep, "prepare", lasting(speed.compile, None))
    patch.setattr(RunDir, "heartbeat", lasting(speed.log, None))
    patch.setattr(checkpoint, "save_file", lasting(speed.checkpoint / 2, None))
    patch.setattr(loop, "heldout_loss", lasting(speed.evaluate, {"loss@0.15": 1.0}))


@settings(max_examples=6, deadline=None)
@given(
    update=st.floats(0.01, 0.5),
    row=st.floats(0.001, 0.03),
    extras=st.tuples(*[st.floats(0.0, 4.0)] * 5),
    ramp=st.sampled_from(("0.0", "0.6")),
    final_rate=st.sampled_from(("null", "0.125")),
    charge=st.sampled_from(("[step,log]", "[compile,data_wait,step,checkpoint,log,evaluate]")),
)
def test_the_forecast_is_what_the_loop_does(
    corpus: Corpus,
    cpu: Device,
    update: float,
    row: float,
    extras: tuple[float, ...],
    ramp: str,
    final_rate: str,
    charge: str,
) -> None:
    compiling, first, log, save, evaluate = extras
    speed = Speed(update, row, compiling, None, 8, row / 16, first, 0.0, log / 20, save, evaluate)
    overrides = ["batch.rows=32", f"batch.ramp={ramp}", "batch.quantum=4"]
    overrides += [f"masking.final_rate={final_rate}", f"budget.charge={charge}"]
    overrides += ["train.checkpoint_seconds=13.0", "train.heldout_every=0.15"]
    planned = tiny("crammed", *overrides, budget={"limit": "60s"})
    clock = FakeClock()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        _costs(patch, clock, speed)
        with RunDir.open(Path(folder) / "run", planned) as run:
            trained = pretrain(planned, corpus, run, cpu, SILENT, clock)
    # A checkpoint ends with a heartbeat, which takes as long as a log point here.
    measured = replace(speed, checkpoint=speed.checkpoint + speed.log)
    result = forecast(planned, corpus.vocab_size, corpus.rows, measured)
    assert abs(result["updates"] - trained.work.updates) <= 1
    assert result["tokens"] == pytest.approx(trained.work.tokens, abs=32 * 32)
    assert result["seconds"] == pytest.approx(trained.charged_seconds, abs=speed.seconds(32, 8) + 5)


@pytest.mark.parametrize("rate", [None, "masking.final_rate=0.125"])
def test_measuring_finds_what_things_take(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch, rate: str | None
) -> None:
    clock = FakeClock()
    truth = Speed(0.2, 0.01, 3.0, None, 8, 0.002 if rate else 0.0, 0.7, 3.0, 0.03, 4.0, 1.5)
    _costs(monkeypatch, clock, truth)
    charge = "budget.charge=[step,checkpoint,log,evaluate]"
    asked = config("batch.rows=64", charge, *([rate] if rate else []), budget="30m")
    monkeypatch.setattr(train_forecast, "heldout_loss", vars(loop)["heldout_loss"])
    found = measure(asked, corpus, cpu, 20.0, SILENT, clock)
    for rows, predicted in ((64, 8), (64, 4), (3, 8)):
        wanted = truth.seconds(rows, predicted) if rate else truth.seconds(rows)
        assert found.seconds(rows, predicted) == pytest.approx(wanted)
    for name in ("compile", "first_compile", "first", "log", "evaluate"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name)), name
    assert found.checkpoint == pytest.approx(truth.checkpoint + truth.log)  # with a heartbeat each
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_measuring_reads_onwards(
    corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = FakeClock(), []
    _costs(monkeypatch, clock, SPEED)

    def note(_: RowStream, start: int, count: int) -> NDArray[np.int64]:
        read.append((start, count))
        return np.zeros((count, 32), np.int64)

    monkeypatch.setattr(RowStream, "read", note)
    measure(config("batch.rows=64", budget="60s"), corpus, cpu, 5.0, SILENT, clock)
    assert {count for _, count in read} == {32, 64}
    assert [start for start, _ in read] == [0, *np.cumsum([count for _, count in read])[:-1]]


def test_measuring_is_of_real_updates(cpu: Device) -> None:
    real = measure(config(budget="60s"), None, cpu, 0.5, SILENT)
    assert 0 < real.seconds(8) < 5
    assert real.low <= 1.0 <= real.high
    assert real.log > 0.0
    assert real.checkpoint == 0.0  # the budget ends before the first


def test_compiling_is_measured_cold_and_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = choose_device(ComputeConfig(device="cpu", compile="on"))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    clock, takes = FakeClock(tick=0.001), iter((9.0, 2.0))

    def prepare(*_: object) -> None:
        clock.now += next(takes)

    monkeypatch.setattr(TrainStep, "prepare", prepare)
    speed = measure(config(budget="60s"), None, compiled, 0.0, SILENT, clock)
    assert (speed.first_compile, speed.compile) == pytest.approx((9.0, 2.0), abs=0.01)


def test_other_sizes_by_their_flops() -> None:
    asked = config("model.head_dim=16", budget="1h")
    sizes = candidates(asked, 256, 1000, 1_000_000)
    costs = [
        train_flops_per_token(
            asked.model.model_copy(update={k: size[k] for k in ("layers", "width")}), 256, 32, 8
        )
        for size in sizes
    ]
    assert costs == sorted(costs)
    (own,) = (size for size in sizes if size["measured"])
    assert (own["layers"], own["width"], own["tokens"]) == (2, 32, 1_000_000)
    total = [cost * size["tokens"] for cost, size in zip(costs, sizes, strict=True)]
    assert total == pytest.approx([total[0]] * len(sizes), rel=1e-2)
    counted = config("model.head_dim=16", budget="1e6tok")
    assert {size["tokens"] for size in candidates(counted, 256, 1000, 1_000_000)} == {1_000_000}
    wide = candidates(config("model.head_dim=32", budget="1h"), 256, None, 1_000_000)
    assert {size["epochs"] for size in wide} == {None}


@given(
    flops=st.floats(15, 20),
    rows=st.one_of(st.none(), st.integers(1_000, 10**9)),
)
def test_the_best_size_keeps_its_rule(flops: float, rows: int | None) -> None:
    asked = load_config("crammed-2022", [], {"budget": {"limit": "24h"}})
    tokens = round(10**flops / 0.623e9)
    sizes = candidates(asked, 32768, rows, tokens)
    best = best_size(sizes)
    (chosen,) = (s for s in sizes if (s["layers"], s["width"]) == (best["layers"], best["width"]))
    fresh = [s for s in sizes if s["epochs"] is None or s["epochs"] <= 4]
    fed = [s for s in fresh if s["tokens_per_layer_parameter"] >= 20]
    assert chosen in (fed or fresh or sizes)
    bigger = [s for s in sizes if s["parameters"] > chosen["parameters"]]
    smaller = [s for s in sizes if s["parameters"] < chosen["parameters"]]
    if fed:
        assert not any(s in fed for s in bigger)
    elif fresh:
        assert not any(s in fresh for s in smaller)
    else:
        assert not bigger


def test_the_papers_day_buys_a_model_near_the_papers_size() -> None:
    asked = load_config("crammed-2022", [], {"budget": {"limit": "24h"}})
    best = best_size(candidates(asked, 32768, None, 9_000_000_000))
    assert (best["layers"], best["width"]) == (22, 768)
    assert "20 tokens a parameter of its layers" in best["why"]


def test_the_verb_prints_it() -> None:
    done = command("plan", "crammed", *TINY, "--budget", "1m", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == result["updates"] * 8 * 32
    words = command("plan", "crammed", *TINY, "--budget", "40updates", "--seconds", "1").stdout
    assert "updates    40" in words
    assert "-> " in words
    assert "measured" in words
