"""What a budget will buy: the run played through, and the loop that it plays."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.count import train_flops_per_token
from crammed.planning.forecast import best_size, candidates, forecast
from crammed.planning.parts import PartTimes
from crammed.rules.choosing import Choice, Chosen, choose
from crammed.rules.recipe import ask
from crammed.rules.sizing import tokens, with_values
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT
from crammed.training.loop import pretrain
from support.command import crammed as command
from support.costs import play_costs
from support.costs import timed_config as config
from support.text import FakeClock, tiny

SPEED = PartTimes(update=0.5, row=0.01, compile=2.0, memory=None, microbatch_rows=8)


def test_a_budget_of_time_is_filled_to_the_last_update() -> None:
    seconds = SPEED.seconds(8)
    assert seconds == pytest.approx(0.58)
    result = forecast(config(budget="60s"), 256, 1000, SPEED)
    assert result["updates"] == int((60 - 2) / seconds)
    assert result["tokens"] == result["updates"] * 8 * 32
    assert result["epochs"] == pytest.approx(result["updates"] * 8 / 1000)
    assert result["seconds"] == pytest.approx(2 + result["updates"] * seconds)
    assert result["notes"] == [
        "only 100 updates: raise the budget, lower batch.rows (8), or train a smaller model"
    ]


@pytest.mark.parametrize("budget", ["1e10s", "1e12updates", "1e18tok"])
def test_a_budget_that_takes_too_long_to_play_is_refused(budget: str) -> None:
    with pytest.raises(
        InputError, match=r"would take about \de\+\d\d updates, too many to simulate"
    ):
        forecast(config(budget=budget), 256, None, SPEED)


def test_what_will_not_go_well_is_said() -> None:
    assert "before one update" in forecast(config(budget="1s"), 256, None, SPEED)["notes"][0]
    few = forecast(config(budget="300updates"), 256, 100, SPEED)["notes"]
    assert few == ["the corpus is read 24.0 times: add text"]
    tight = forecast(config("batch.rows=16", budget="300updates"), 256, 12, SPEED)["notes"]
    assert "fewer than one batch" in tight[0]


@settings(max_examples=6, deadline=None)
@given(
    update=st.floats(0.01, 0.5),
    row=st.floats(0.001, 0.03),
    extras=st.tuples(*[st.floats(0.0, 4.0)] * 5),
    ramp=st.sampled_from(("0.0", "0.6")),
    final_rate=st.sampled_from(("null", "0.125")),
    charge=st.sampled_from(("[step,log]", "[compile,data_wait,step,checkpoint,log,evaluate]")),
    epochs=st.sampled_from(("null", "0.5")),
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
    epochs: str,
) -> None:
    compiling, first, log, save, evaluate = extras
    speed = PartTimes(
        update, row, compiling, None, 8, row / 16, first, 0.0, log / 20, save, evaluate
    )
    overrides = ["batch.rows=32", f"batch.ramp={ramp}", "batch.quantum=4"]
    overrides += [f"masking.final_rate={final_rate}", f"budget.charge={charge}"]
    overrides += ["train.checkpoint_seconds=13.0", "train.heldout_every=0.15"]
    overrides += [f"budget.most_epochs={epochs}"]
    planned = tiny("crammed", *overrides, budget={"limit": "60s"})
    clock = FakeClock()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        play_costs(patch, clock, speed)
        with RunDir.open(Path(folder) / "run", planned) as run:
            trained = pretrain(planned, corpus, run, cpu, SILENT, clock)
    # A checkpoint ends with a heartbeat, which takes as long as a log point here.
    measured = replace(speed, checkpoint=speed.checkpoint + speed.log)
    result = forecast(planned, corpus.vocab_size, corpus.rows, measured)
    assert abs(result["updates"] - trained.work.updates) <= 1
    assert result["tokens"] == pytest.approx(trained.work.tokens, abs=32 * 32)
    assert result["seconds"] == pytest.approx(trained.charged_seconds, abs=speed.seconds(32, 8) + 5)


def test_other_sizes_by_their_flops() -> None:
    asked = config("model.head_dim=16", "masking.rate=0.25", budget="1h")
    suited = sized(asked, 4, 192)
    sizes = candidates(asked, 256, 1000, 1_000_000, suited)
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
    found = candidates(counted, 256, 1000, 1_000_000, sized(counted, 4, 192))
    assert {size["tokens"] for size in found} == {1_000_000}
    wide = config("model.head_dim=32", budget="1h")
    assert {size["epochs"] for size in candidates(wide, 256, None, 1_000_000, suited)} == {None}


def test_sizes_beside_one_whose_heads_follow_have_their_own() -> None:
    wanted = ask("crammed", [], {"budget": {"limit": "5e14flop"}})
    chosen = choose(wanted, None, lambda config: pytest.fail("measured"))
    sizes = candidates(chosen.config, 8192, None, 1_000_000, chosen)
    found = [(size["layers"], size["width"]) for size in sizes]
    assert found == [(2, 64), (2, 128), (4, 128), (4, 192), (4, 256), (6, 320)]


def test_sizes_whose_gate_would_be_cut_in_the_middle_of_a_feature_are_left_out() -> None:
    shape = {"model.layers": 12, "model.width": 768, "model.head_dim": 64}
    asked = with_values(config(budget="1h"), {**shape, "model.ffn_ratio": 2.6667})
    sizes = candidates(asked, 256, None, 1_000_000, sized(asked, 4, 192))
    found = [(size["layers"], size["width"]) for size in sizes]
    assert (12, 768) in found
    assert (4, 256) not in found  # 683 features


def sized(config: RunConfig, layers: int, width: int, speed: float | None = None) -> Chosen:
    shape = {"model.layers": layers, "model.width": width}
    choice = Choice(follows=tuple(shape), flops_per_second=speed)
    return Chosen(with_values(config, shape), choice)


def test_sizes_far_too_large_are_not_listed() -> None:
    asked = config("model.head_dim=16", budget="1h")
    for layers, width, last in ((2, 128, (4, 192)), (4, 192, (6, 320))):
        sizes = candidates(asked, 256, None, 1_000_000, sized(asked, layers, width))
        assert (sizes[-1]["layers"], sizes[-1]["width"]) == last
    large = with_values(asked, {"model.layers": 22, "model.width": 768})
    sizes = candidates(large, 256, None, 1_000, sized(asked, 2, 128))
    assert [size["measured"] for size in sizes[-3:]] == [True, False, False]  # own, two beyond


def test_a_size_that_was_measured_counts_with_its_own_speed() -> None:
    asked = config("model.head_dim=16", budget="1h")
    suited = sized(asked, 2, 128, speed=1e9)
    found = candidates(asked, 256, None, 1_000_000, suited)
    (size,) = (each for each in found if each["width"] == 128 and each["layers"] == 2)
    assert size["measured"]
    assert size["tokens"] == round(tokens(suited.config, 1e9))


def test_the_papers_day_buys_a_model_near_the_papers_size() -> None:
    asked = ask("crammed-2022", [], {"budget": {"limit": "5.6e18flop"}}, fit=True)
    best = best_size(choose(asked, None, lambda config: pytest.fail("measured")), None)
    assert (best["layers"], best["width"]) == (22, 768)
    assert "20 tokens per parameter of its layers" in best["why"]


def test_the_verb_prints_it() -> None:
    done = command("plan", "crammed", *TINY, "--budget", "15s", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == result["updates"] * 8 * 32
    words = command("plan", "crammed", *TINY, "--budget", "40updates", "--seconds", "1").stdout
    assert "updates    40" in words
    assert "-> " in words
    assert "measured" in words
