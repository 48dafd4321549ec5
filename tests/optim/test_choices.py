"""Every optimizer that a configuration can name, whichever there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.config.choice import choices_of
from crammed.machine.device import Device
from crammed.runs.directory import RunDir
from crammed.training.build import build
from crammed.training.checkpoint import Checkpoints, load_checkpoint
from crammed.training.session import Session
from crammed.training.step import TrainStep
from support.steps import SPECIALS, rows_of, update_of
from support.text import tiny

KINDS = choices_of(RunConfig)["optim"].kinds
OPTIONS = [
    (name, key) for name, kind in KINDS.items() for key in kind.model_fields if key != "name"
]
every_optimizer = pytest.mark.parametrize("name", KINDS)


def config_with(name: str, *overrides: str) -> RunConfig:
    # Biases everywhere, so that there is something that must not decay in every part.
    biases = ("model.linear_bias=true", "model.qkv_bias=true")
    return tiny("crammed", f"optim.name={name}", *biases, *overrides)


def trained(step: TrainStep, numbers: range, factor: float = 1.0) -> list[torch.Tensor]:
    """The parameters after updates of these numbers."""
    for number in numbers:
        step.gradients(rows_of(8, number), update_of(8, number))
        assert step.apply(factor) is not None
    return [parameter.detach().clone() for parameter in step.parameters]


@every_optimizer
def test_the_schedule_multiplies_every_learning_rate(name: str, cpu: Device) -> None:
    step = build(config_with(name), 256, SPECIALS, cpu)
    peaks = [group["lr"] for group in step.optimizer.param_groups]
    assert max(peaks) > 0.0
    before = [parameter.detach().clone() for parameter in step.parameters]
    still = trained(step, range(1), factor=0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, still, strict=True))
    step.optimizer.set_factor(0.37)
    assert [group["lr"] for group in step.optimizer.param_groups] == [0.37 * lr for lr in peaks]


@every_optimizer
def test_embeddings_may_have_a_peak_rate_of_their_own(name: str, cpu: Device) -> None:
    step = build(config_with(name, "optim.embedding_lr=0.25"), 256, SPECIALS, cpu)
    table = step.model.encoder.tokens.weight
    rates = {}
    for factor in (1.0, 0.5):
        step.optimizer.set_factor(factor)
        groups = [g for g in step.optimizer.param_groups if any(p is table for p in g["params"])]
        rates[factor] = [(len(group["params"]), group["lr"]) for group in groups]
    assert rates == {1.0: [(1, 0.25)], 0.5: [(1, 0.125)]}
    others = [peak for peak in step.optimizer.peaks if peak != 0.25]
    assert others == build(config_with(name), 256, SPECIALS, cpu).optimizer.peaks


@every_optimizer
def test_it_learns(name: str, cpu: Device) -> None:
    step = build(config_with(name), 256, SPECIALS, cpu)
    losses = []
    for number in range(12):
        losses.append(step.gradients(rows_of(8), update_of(8, number)).item())
        step.apply(1.0)
    assert losses[-1] < losses[0] - 0.01


@every_optimizer
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    name: str, cpu: Device, tmp_path: Path
) -> None:
    config = config_with(name)
    whole = trained(build(config, 256, SPECIALS, cpu), range(6))
    first = build(config, 256, SPECIALS, cpu)
    trained(first, range(3))
    with RunDir.open(tmp_path / "run", config) as run:
        Checkpoints(Session.untimed(run, first, corpus_sha256="corpus")).save(Work(updates=3))
    second = build(config, 256, SPECIALS, cpu)
    assert load_checkpoint(run.checkpoints, second, "corpus").state.work.updates == 3
    for a, b in zip(whole, trained(second, range(3, 6)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_is_read(name: str, option: str, cpu: Device) -> None:
    """An option that does nothing is none."""
    seen = range(7)  # RAdam knows no scale before the sixth update
    usual = trained(build(config_with(name), 256, SPECIALS, cpu), seen)
    # Two limits that every gradient exceeds would be the same to an optimizer that ignores scale.
    other = {"clip": "null", "cautious_decay": "true"}.get(option, "0.3")
    config = config_with(name, f"optim.{option}={other}")
    assert getattr(config.optim, option) != getattr(config_with(name).optim, option)
    changed = trained(build(config, 256, SPECIALS, cpu), seen)
    assert not all(torch.equal(a, b) for a, b in zip(usual, changed, strict=True))
