"""Averages of the weights: what it is, who sees it, and that it survives a stop."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError, Interrupted
from crammed.machine.device import Device
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT
from crammed.training.loop import pretrain
from crammed.training.update.average import KEY, is_average
from crammed.training.update.build import build
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, check_resumed, rows_of, update_of, vector
from support.text import tiny
from support.training import events, train


def step_of(cpu: Device, *words: str) -> TrainStep:
    return build(tiny("crammed", *words), 256, SPECIALS, cpu)


def trained(step: TrainStep, numbers: range) -> list[torch.Tensor]:
    """The weights after each of these updates, as one vector."""
    seen = []
    for number in numbers:
        step.gradients(rows_of(8, number), update_of(8, number))
        step.apply(1.0)
        seen.append(vector(step.parameters).double())
    return seen


def average_of(step: TrainStep) -> torch.Tensor:
    return vector(step.optimizer.state[p][KEY] for p in step.parameters)


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "lion", "adafactor"])
def test_it_is_a_running_average_that_changes_no_training(name: str, cpu: Device) -> None:
    chosen = f"optim.name={name}"
    step = step_of(cpu, chosen, "train.average=0.75")
    seen, plain = trained(step, range(5)), trained(step_of(cpu, chosen), range(5))
    assert torch.equal(seen[-1], plain[-1])
    expected = seen[0]
    for weights in seen[1:]:
        expected = 0.75 * expected + 0.25 * weights
    torch.testing.assert_close(average_of(step).double(), expected, rtol=1e-5, atol=1e-7)
    before = average_of(step)
    assert step.average is not None
    with step.average.shown():
        assert torch.equal(vector(step.parameters), before)
    assert torch.equal(vector(step.parameters).double(), seen[4])
    assert step._config.state_per_parameter() == step._config.optim.state_per_parameter + 1


def test_the_latest_weights_are_averaged_all_alike(cpu: Device) -> None:
    step = step_of(cpu, "train.latest.count=3", "train.latest.every=2")
    plain = trained(step_of(cpu), range(11))
    assert step._config.state_per_parameter() == step._config.optim.state_per_parameter + 3
    for number, wanted in ((0, [0]), (3, [1, 3]), (9, [5, 7, 9])):
        seen = trained(step, range(step._number + (number > 0), number + 1))
        assert torch.equal(seen[-1], plain[number])
        assert step.average is not None
        with step.average.shown():
            mean = vector(step.parameters)
        expected = torch.stack([plain[n] for n in wanted]).mean(0)
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-7)
    assert torch.equal(trained(step, range(10, 11))[0], plain[10])
    assert step.average is not None
    step.average.adopt()
    assert torch.equal(vector(step.parameters), mean)
    with pytest.raises(InputError, match="leave one out"):
        tiny("crammed", "train.average=0.9", "train.latest.count=3")


@pytest.mark.parametrize("word", ["train.average=0.9", "train.latest={count: 2, every: 2}"])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    word: str, cpu: Device, tmp_path: Path
) -> None:
    config = tiny("crammed", word)
    step = check_resumed(config, cpu, tmp_path / "run", trained)
    assert all(any(map(is_average, step.optimizer.state[each])) for each in step.parameters)


def test_the_run_measures_and_keeps_the_average(
    corpus: Corpus, cpu: Device, tmp_path: Path
) -> None:
    def run_with(*words: str) -> tuple[RunConfig, list[float], torch.Tensor]:
        limits = ("train.heldout_every=0.5", "budget.limit=4updates")
        config = tiny("crammed", *limits, *words)
        out = tmp_path / str(len(words))
        with RunDir.open(out, config) as run:
            made = pretrain(config, corpus, run, cpu, SILENT)
            again = pretrain(config, corpus, run, cpu, SILENT)
        weights = [vector(each.model.parameters()) for each in (made, again)]
        assert torch.equal(*weights)
        losses = [event["loss@0.15"] for event in events(out, "heldout")]
        return config, losses, weights[0]

    _, losses, weights = run_with()
    _, slower, averaged = run_with("train.average=0.99")
    assert len(losses) == len(slower) > 0
    assert losses[0] != slower[0]
    assert not torch.equal(weights, averaged)
    _, _, latest = run_with("train.latest.every=1", "train.latest.count=2")
    assert not torch.equal(weights, latest)


def test_a_signal_at_the_end_has_the_processes_compared_once(
    corpus: Corpus, cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has the average in place of its weights then, and the others have not."""
    config = tiny("crammed", "train.average=0.9", budget={"limit": "4updates"})
    whole, compared = train(config, corpus, tmp_path / "whole", cpu), list[int]()

    def compare(step: TrainStep, _: object) -> None:
        if not compared:
            signal.raise_signal(signal.SIGTERM)
        compared.append(step._number)

    monkeypatch.setattr("crammed.training.upkeep.compare_weights", compare)
    with pytest.raises(Interrupted, match="SIGTERM after 4 updates; everything is saved"):
        train(config, corpus, tmp_path / "run", cpu)
    assert compared == [3]
    again = train(config, corpus, tmp_path / "run", cpu)
    assert torch.equal(*(vector(each.model.parameters()) for each in (whole, again)))
