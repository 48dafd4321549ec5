"""What a budget will buy: the plan played through, and the measuring before it."""

from __future__ import annotations

import json

import pytest

from conftest import FakeClock, tiny
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.doctor import TINY
from crammed.progress import SILENT
from crammed.train.forecast import Speed, forecast, measure
from test_cli import crammed as command

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


def test_measuring_is_of_real_updates(corpus: Corpus, cpu: Device) -> None:
    clock = FakeClock(tick=0.01)
    speed = measure(config(budget="60s"), corpus, cpu, 1.0, SILENT, clock)
    # By this clock every update takes one tick, whatever its rows.
    assert speed.seconds(4) == pytest.approx(0.01, rel=0.01)
    assert speed.compile == 0.0
    real = measure(config(budget="60s"), None, cpu, 0.5, SILENT)
    assert 0 < real.seconds(8) < 5


def test_the_verb_prints_it() -> None:
    done = command("plan", "crammed", *TINY, "--budget", "1m", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == result["updates"] * 8 * 32
    words = command("plan", "crammed", *TINY, "--budget", "40updates", "--seconds", "1").stdout
    assert "updates  40" in words
