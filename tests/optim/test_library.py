"""Optimizers of another library: they do as they do there, survive stops, are refused early."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import torch

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.optim import library
from crammed.optim.build import update_flops
from crammed.rules.rates import far_too_high
from crammed.training.plan import refuse_too_little
from crammed.training.update.build import build
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, check_resumed, rows_of, update_of, vector
from support.text import tiny

CHOICES = {
    "SOAP": ("optim.lr=3e-3", "optim.options.precondition_frequency=2"),
    "ScalableShampoo": (
        "optim.lr=0.5",
        "optim.options={preconditioning_compute_steps: 2, start_preconditioning_step: 2}",
    ),
    "ScheduleFreeAdamW": ("optim.lr=2.5e-3",),
    "FlashAdamW": (),
    "SophiaH": ("optim.lr=1e-2", "optim.options.update_period=3"),
    "AdaHessian": ("optim.lr=5e-2",),
}
"""Those in the table of options, with what makes their rare steps frequent."""
every_choice = pytest.mark.parametrize("of", CHOICES)


def config_of(of: str, *words: str) -> RunConfig:
    return tiny("crammed", "optim.name=library", f"optim.of={of}", *CHOICES.get(of, ()), *words)


def trained(step: TrainStep, numbers: range) -> list[float]:
    """The losses of these updates."""
    losses = []
    for number in numbers:
        losses.append(float(step.gradients(rows_of(8, number % 3), update_of(8, number))))
        step.apply(1.0 - 0.02 * number)
    return losses


def shown_by(step: TrainStep) -> torch.Tensor:
    assert step.average is not None
    with step.average.shown():
        return vector(step.parameters)


@every_choice
def test_it_learns_and_goes_on_from_a_checkpoint_with_the_same_bits(
    of: str, cpu: Device, tmp_path: Path
) -> None:
    config = config_of(of, "train.average=0.9") if of != "ScheduleFreeAdamW" else config_of(of)
    losses: list[list[float]] = []

    def train(step: TrainStep, numbers: range) -> None:
        losses.append(trained(step, numbers))

    check_resumed(config, cpu, tmp_path / "run", train, updates=12, kept=5)
    assert losses[0][-1] < losses[0][2] - 0.01


@every_choice
def test_it_moves_the_weights_as_the_library_alone_does(of: str, cpu: Device) -> None:
    config = config_of(of, "optim.weight_decay=0.1")
    step, twin = build(config, 256, SPECIALS, cpu), build(config, 256, SPECIALS, cpu)
    kinds = {"decayed": [], "free": []}  # type: dict[str, list[Any]]
    for name, parameter in twin.model.named_parameters():
        kinds["free" if "norm" in name or name.endswith("bias") else "decayed"].append(parameter)
    decays = {"decayed": 0.1, "free": 0.0}
    groups: list[dict[str, Any]] = [
        {"params": kinds[kind], "weight_decay": decays[kind]} for kind in kinds
    ]
    options: Any = config.optim
    alone = getattr(pytorch_optimizer, of)(groups, lr=options.lr, **options.options)
    assert step.optimizer.of_library is not None
    for number in range(4):
        step.gradients(rows_of(8, number), update_of(8, number))
        twin.gradients(rows_of(8, number), update_of(8, number))
        measured = step.optimizer.of_library.curvature
        step.apply(1.0)
        torch.nn.utils.clip_grad_norm_(twin.parameters, options.clip)
        if measured is None:
            alone.step()
        else:
            there = dict(zip(twin.parameters, measured.values(), strict=True))
            alone.step(hessian=[there[p] for group in groups for p in group["params"]])
        alone.zero_grad()
    torch.testing.assert_close(vector(step.parameters), vector(twin.parameters))


def test_schedule_free_weights_are_measured_and_kept_but_not_trained(cpu: Device) -> None:
    step, plain = (build(config_of("ScheduleFreeAdamW"), 256, SPECIALS, cpu) for _ in range(2))
    for number in range(4):
        trained(plain, range(number, number + 1))
        trained(step, range(number, number + 1))
        before = vector(step.parameters)
        shown = shown_by(step)
        assert torch.equal(vector(step.parameters), before)
        assert number == 0 or not torch.allclose(shown, before, rtol=0, atol=1e-4)
    assert torch.equal(vector(step.parameters), vector(plain.parameters))
    shown = shown_by(step)
    assert step.average is not None
    step.average.adopt()
    assert torch.equal(vector(step.parameters), shown)
    with pytest.raises(InputError, match=r"leave train\.average and"):
        build(config_of("ScheduleFreeAdamW", "train.average=0.9"), 256, SPECIALS, cpu)


@every_choice
def test_going_back_to_the_start_undoes_what_diverged(of: str, cpu: Device) -> None:
    step, fresh = (build(config_of(of), 256, SPECIALS, cpu) for _ in range(2))
    before = [parameter.detach().clone() for parameter in step.parameters]
    saved = [step.optimizer.saved(parameter) for parameter in step.parameters]
    trained(step, range(2))
    step.gradients(rows_of(8), update_of(8))
    step.parameters[0].grad = torch.full_like(step.parameters[0], torch.nan)
    step.apply(1.0)
    if step.average is not None:
        step.average.adopt()
    assert not vector(step.parameters).isfinite().all()
    for parameter, weights, state in zip(step.parameters, before, saved, strict=True):
        parameter.data.copy_(weights)
        step.optimizer.restore(parameter, state)
    trained(step, range(3))
    trained(fresh, range(3))
    assert torch.equal(vector(step.parameters), vector(fresh.parameters))


def test_products_are_counted_at_the_size_of_the_vocabulary() -> None:
    config = config_of("SOAP")
    small, large = (update_flops(config.model, size, config.optim) for size in (256, 512))
    assert large > small
    assert update_flops(config.model, 256, config_of("ADOPT").optim) == 0


@pytest.mark.parametrize(
    ("of", "words", "said"),
    [
        ("SOAB", (), "has no optimizer 'SOAB'; did you mean SOAP"),
        ("SOAP", ("optim.options.betta=1",), "SOAP has no 'betta'; it has betas,"),
        ("SOAP", ("optim.options.betas=[2.0, 0.9]",), "SOAP cannot be used here"),
        ("Kron", (), "Kron cannot be used here"),
        ("MADGRAD", ("optim.lr=1e30",), "MADGRAD .* could not be resumed exactly"),
        ("SAM", (), "SAM cannot be used here .*nothing but gradients"),
        ("SophiaH", ("train.sharpness=0.1",), "leave train.sharpness out"),
        ("load_optimizer", (), "has no optimizer"),
    ],
)
def test_what_cannot_work_is_refused_before_the_text_is_prepared(
    of: str, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        refuse_too_little(config_of(of, *words))


def test_nothing_is_said_about_rates_that_nobody_knows() -> None:
    assert (
        far_too_high(config_of("ScalableShampoo", "optim.lr=5.0", "optim.embedding_lr=2.0")) is None
    )


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library.LIBRARY, None)
    with pytest.raises(InputError, match=r"optim.name=library needs pytorch_optimizer: pip"):
        refuse_too_little(config_of("SOAP", "model.width=96"))
