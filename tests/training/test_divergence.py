"""A run whose loss is no longer finite stops, or goes back and goes on otherwise."""

from __future__ import annotations

import io
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.data.corpus import Corpus
from crammed.errors import Diverged, Interrupted
from crammed.machine.device import Device
from crammed.model.tensors import all_finite, read_tensors
from crammed.pretraining import train_and_export
from crammed.runs.directory import RunDir, read_config
from crammed.runs.listing import list_runs
from crammed.runs.logs import read_metrics
from crammed.terminal.progress import SILENT, Progress
from crammed.training.recorder import FEWEST, Spikes
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.steps import after_gradients, same
from support.text import FakeClock, tiny
from support.training import events, train

EVERY = ("train.log_seconds=1e-9", "train.heldout_every=null")


class Killed(BaseException):
    """The process ends without another word."""


class Poison:
    """Rows that ruin every update that reads them, unless its rate is low."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
        self.rows, self.harmless_below = range(first, last), 0.0
        self.seen: list[Update] = []
        self.signal_at = self.kill_at = 0
        gradients, apply = TrainStep.gradients, TrainStep.apply

        def poisoned(step: TrainStep, rows: torch.Tensor, update: Update, first: int = 0) -> Any:
            self.seen.append(update)
            if len(self.seen) == self.signal_at:
                signal.raise_signal(signal.SIGTERM)
            if len(self.seen) == self.kill_at:
                raise Killed
            return gradients(step, rows, update, first)

        def ruined(step: TrainStep, factor: float) -> Any:
            norm = apply(step, factor)
            if self.seen[-1].first_row in self.rows and factor >= self.harmless_below:
                with torch.no_grad():
                    step.parameters[0].fill_(math.nan)
            return norm

        monkeypatch.setattr(TrainStep, "gradients", poisoned)
        monkeypatch.setattr(TrainStep, "apply", ruined)


def test_without_another_choice_the_run_stops_and_says_what_is_kept(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, 40, 1000)  # from the sixth update on
    config = tiny("crammed", *EVERY, budget={"limit": "12updates"})
    with pytest.raises(Diverged, match="loss is nan after 7 updates; no checkpoint was") as caught:
        train(config, corpus, tmp_path / "run", cpu)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_no_checkpoint_holds_a_value_that_is_not_finite(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, 40, 1000)
    often = ("train.checkpoint_seconds=1e-9", "train.log_seconds=1e9", "train.heldout_every=null")
    config = tiny("crammed", *often, budget={"limit": "12updates"})
    run = tmp_path / "run"
    for _ in range(2):  # the same command stops at the same place
        with pytest.raises(Diverged, match=r"after 6 updates; the checkpoint of update 5 is kept"):
            train(config, corpus, run, cpu)
        names = [folder.name for folder in sorted((run / "checkpoints").iterdir())]
        assert names == ["step-00000004", "step-00000005"]
        for file in run.rglob("*.safetensors"):
            assert all_finite(read_tensors(file).values())


def test_a_loss_that_is_not_finite_is_noticed_before_a_checkpoint(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_gradients(
        monkeypatch, lambda _, update, loss: loss * math.inf if update.number == 3 else loss
    )
    often = ("train.checkpoint_seconds=1e-9", "train.log_seconds=1e9")
    config = tiny("crammed", *often, budget={"limit": "12updates"})
    with pytest.raises(Diverged, match=r"loss is inf after 4 updates; the checkpoint of update 3"):
        train(config, corpus, tmp_path / "run", cpu)


def test_divergence_in_the_last_update_is_noticed(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, 16, 24)
    config = tiny("crammed", *EVERY, budget={"limit": "3updates"})
    with RunDir.open(tmp_path / "run", config) as run:
        with pytest.raises(Diverged, match="weights are no longer finite after 3 updates"):
            train_and_export(run, corpus, cpu, SILENT)
    assert not run.final.exists()


@pytest.mark.parametrize(
    ("rates", "suited"),
    [
        (["optim.lr=1e3", "optim.matrix_lr=2e3"], "optim.lr=0.0049 optim.matrix_lr=0.0078"),
        (["optim.lr=1e3", "optim.name=sgd"], "optim.lr=1"),
        (["optim.embedding_lr=1"], "optim.embedding_lr=0.0049"),
    ],
)
def test_a_learning_rate_far_too_high_is_named_with_one_that_suits(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    rates: list[str],
    suited: str,
) -> None:
    after_gradients(monkeypatch, lambda _, update, loss: loss * math.nan)
    config = tiny("crammed", *rates, budget={"limit": "2updates"})
    announced = io.StringIO()
    with RunDir.open(tmp_path / "run", config) as run:
        with pytest.raises(
            Diverged, match="far too high: start a new run with " + suited + " and"
        ) as caught:
            train_and_export(run, corpus, cpu, Progress(announced))
    assert "train.divergence" not in str(caught.value)
    assert f"far too high: {suited} would suit" in announced.getvalue()


def test_a_model_whose_held_out_loss_is_not_finite_is_not_handed_over(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", budget={"limit": "3updates"})
    monkeypatch.setattr(
        "crammed.pretraining.heldout_losses", lambda *_, each: ({"loss@0.15": math.inf}, {})
    )
    with RunDir.open(tmp_path / "run", config) as run:
        with pytest.raises(Diverged, match="no finite held-out loss"):
            train_and_export(run, corpus, cpu, SILENT)
    assert run.summary() is None
    (listed,) = list_runs(run.path)
    assert listed.state == "failed"
    assert listed.problem == "the model has finite weights, but no finite held-out loss"


def test_rows_are_skipped(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison(monkeypatch, 40, 56)  # the sixth and the seventh update
    skip = ("train.divergence.then=skip", "train.checkpoint_seconds=1e9")
    config = tiny("crammed", *EVERY, *skip, budget={"limit": "3000tok"})
    trained = train(config, corpus, tmp_path / "run", cpu)
    assert trained.work.updates == 11  # what is thrown away does not count
    # Nothing but the beginning was saved, so the seven updates go, and their rows.
    rows = [update.first_row for update in poison.seen]
    assert rows == [*range(0, 56, 8), *range(56, 56 + 88, 8)]
    assert [update.number for update in poison.seen] == [*range(7), *range(11)]
    assert all_finite(trained.model.parameters())
    back = events(tmp_path / "run", "back")
    assert [(event["update"], event["skipped_rows"], event["rate"]) for event in back] == [
        (0, 56, 1.0)
    ]
    assert back[0]["lost_s"] == pytest.approx(trained.accounts["lost"]) != 0.0
    assert [point["update"] for point in read_metrics(tmp_path / "run")] == [*range(1, 12)]


def test_rates_are_lowered_as_often_as_the_recipe_says(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison(monkeypatch, 40, 1000)
    lower = ("train.divergence.then=lower", "train.divergence.factor=0.25")
    config = tiny(
        "crammed", *EVERY, *lower, "train.divergence.times=2", budget={"limit": "9updates"}
    )
    with pytest.raises(Diverged, match="went back 2 times") as caught:
        train(config, corpus, tmp_path / "run", cpu)
    assert caught.value.exit_code == 4
    tries = [update.factor for update in poison.seen if update.number == 2]
    assert tries == pytest.approx([tries[0], tries[0] / 4, tries[0] / 16])
    once = tiny("crammed", *EVERY, *lower, "train.divergence.times=1", budget={"limit": "9updates"})
    with pytest.raises(Diverged, match=r"went back 1 time \("):
        train(once, corpus, tmp_path / "once", cpu)

    poison.seen.clear()
    poison.harmless_below = 0.3  # the schedule's factors lie between 0.25 and 1
    trained = train(config, corpus, tmp_path / "other", cpu)
    assert trained.work.updates == 9
    assert [event["rate"] for event in events(tmp_path / "other", "back")] == [0.25]
    assert read_metrics(tmp_path / "other")[-1]["lr"] < 0.25 * config.optim.lr


def test_lost_time_stays_charged(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, 40, 48)
    skip = ("train.divergence.then=skip", "train.checkpoint_seconds=1e9")
    config = tiny("crammed", *EVERY, *skip, budget={"limit": "60s"})
    trained = train(config, corpus, tmp_path / "run", cpu, clock=FakeClock(0.1))
    assert trained.accounts["lost"] > 5.0
    assert 50.0 < trained.charged_seconds <= 60.0
    assert sum(trained.accounts[name] for name in config.budget.charge) == pytest.approx(
        trained.charged_seconds, abs=5.0
    )


@pytest.mark.parametrize("then", ["skip", "lower"])
@pytest.mark.parametrize("by", ["signal", "kill"])
def test_a_resume_repeats_what_was_chosen(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    by: str,
) -> None:
    poison = Poison(monkeypatch, 40, 56)
    poison.harmless_below = 0.3
    choice = (f"train.divergence.then={then}", "train.divergence.factor=0.25", "model.dropout=0.1")
    config = tiny("bert-original", *EVERY, *choice, budget={"limit": "3000tok"})
    whole = train(config, corpus, tmp_path / "whole", cpu)
    assert len(events(tmp_path / "whole", "back")) == 1
    poison.seen.clear()
    # After the return, which is at the seventh; no checkpoint is due before the end.
    setattr(poison, f"{by}_at", 9)
    with pytest.raises(Interrupted if by == "signal" else Killed):
        train(config, corpus, tmp_path / "run", cpu)
    assert len(events(tmp_path / "run", "back")) == 1
    poison.signal_at = poison.kill_at = 0
    resumed = train(config, corpus, tmp_path / "run", cpu)
    assert len(events(tmp_path / "run", "back")) == 1
    assert resumed.work == whole.work
    assert same(whole.model.parameters(), resumed.model.parameters())


def test_a_run_that_stopped_may_go_on_with_another_choice(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Poison(monkeypatch, 40, 48)
    often = (*EVERY, "train.checkpoint_seconds=1e-9")
    stop = tiny("crammed", *often, budget={"limit": "12updates"})
    skip = tiny("crammed", *often, "train.divergence.then=skip", budget={"limit": "12updates"})
    assert stop.identity() == skip.identity()
    with pytest.raises(Diverged, match=r"repeat the command with train\.divergence\.then=lower"):
        train(stop, corpus, tmp_path / "run", cpu)
    trained = train(skip, corpus, tmp_path / "run", cpu)
    assert trained.work.updates == 12
    assert read_config(tmp_path / "run") == skip
    assert events(tmp_path / "run", "back")[0]["skipped_rows"] == 8


def test_spikes_lie_far_above_what_is_usual() -> None:
    spikes = Spikes(0.01)
    calm = [5.0 + 0.1 * math.sin(n) for n in range(FEWEST)]
    assert spikes.add([*calm[:-1], 99.0])[0] == []  # there is nothing to compare with
    places, usual = spikes.add([5.1, 8.0, 5.0, math.inf, math.nan, 4.0])
    assert places == [1, 3]
    assert usual == pytest.approx(5.0, abs=0.2)
    equal = Spikes(0.01)
    equal.add([1.0] * FEWEST)
    assert equal.add([1.0 + 1e-6, 1.5])[0] == [1]


def test_spikes_of_a_run_are_events(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_gradients(
        monkeypatch, lambda _, update, loss: loss * 3.0 if update.number == 25 else loss
    )
    train(tiny("crammed", *EVERY, budget={"limit": "30updates"}), corpus, tmp_path / "run", cpu)
    spikes = events(tmp_path / "run", "spike")
    found = [event for event in spikes if event["of"] == "loss"]
    assert [event["update"] for event in found] == [26]
    assert found[0]["value"] == pytest.approx(3 * found[0]["usual"], rel=0.1)
