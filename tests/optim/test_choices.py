"""Every optimizer that a configuration can name, whichever there are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from crammed.budget import Ledger, Work
from crammed.config import RunConfig
from crammed.config.kinds import kinds_of
from crammed.config.optim import (
    AdafactorConfig,
    AGDConfig,
    LionConfig,
    NAdamConfig,
    OptimConfig,
    RAdamConfig,
    SGDConfig,
)
from crammed.machine.device import Device
from crammed.optim.build import Optimizers, build_optimizer, update_flops
from crammed.rules.recipe import load_config
from crammed.rules.sizing import flops_per_token
from crammed.training.plan import Planner
from crammed.training.update.build import build
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, check_resumed, rows_of, same, update_of
from support.text import tiny

KINDS = kinds_of(RunConfig)["optim"].kinds
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
    assert same(before, still)
    step.optimizer.set_factor(0.37)
    assert [group["lr"] for group in step.optimizer.param_groups] == [0.37 * lr for lr in peaks]


@every_optimizer
def test_the_flops_of_an_update_are_counted(name: str, cpu: Device) -> None:
    config = config_with(name)
    step = build(config, 256, SPECIALS, cpu)
    for number in range(3):  # the third is like most others
        step.gradients(rows_of(8, number), update_of(8, number))
        with FlopCounterMode(display=False) as counted:
            step.apply(1.0)
    found, own = counted.get_total_flops(), update_flops(config.model, 256, config.optim)
    if name in ("muon", "library"):
        assert own == found > 0
    else:  # Adafactor's outer products cost no more than its work on each number
        assert own == 0 <= found <= 2 * sum(each.numel() for each in step.parameters)
    planned = Planner(config, 256, None, Ledger(())).next(Work())
    assert planned is not None
    assert planned.cost.flops == flops_per_token(config) * planned.cost.tokens + own


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
    check_resumed(config_with(name), cpu, tmp_path / "run", trained)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_is_read(name: str, option: str, cpu: Device) -> None:
    """An option that does nothing is none."""
    seen = range(7)  # RAdam knows no scale before the sixth update
    usual = trained(build(config_with(name), 256, SPECIALS, cpu), seen)
    # Two limits that every gradient exceeds would be the same to an optimizer that ignores scale.
    others = {"cautious_decay": "true", "clipped": "true", "of": "ADOPT"}
    if KINDS[name].model_fields["clip"].default is not None:
        others["clip"] = "null"
    other = (others | {"options": "{normalize_gradient: true}"}).get(option, "0.3")
    config = config_with(name, f"optim.{option}={other}")
    assert getattr(config.optim, option) != getattr(config_with(name).optim, option)
    changed = trained(build(config, 256, SPECIALS, cpu), seen)
    assert not same(usual, changed)


# ---- what RAdam, Adafactor and SGD do with their options


def one_matrix(config: OptimConfig) -> tuple[torch.nn.Parameter, Optimizers]:
    """A layer's matrix, and the optimizer that a configuration gives it."""
    model = torch.nn.Linear(6, 4, bias=False)
    torch.nn.init.normal_(model.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return model.get_parameter("weight"), build_optimizer(model, config)


def moved(config: OptimConfig, *gradients: torch.Tensor) -> torch.Tensor:
    """How far these gradients, one after the other, move a matrix."""
    weight, optimizer = one_matrix(config)
    before = weight.detach().clone()
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach() - before


def some(seed: int = 1) -> torch.Tensor:
    return torch.randn((4, 6), generator=torch.Generator().manual_seed(seed))


def test_sgd_follows_the_sum_of_gradients_and_decay() -> None:
    config = SGDConfig(lr=0.5, momentum=0.25, weight_decay=0.125)
    before = one_matrix(config)[0].detach().clone()
    first = some(1) + 0.125 * before
    after = before - 0.5 * first
    second = 0.25 * first + some(2) + 0.125 * after
    torch.testing.assert_close(before + moved(config, some(1), some(2)), after - 0.5 * second)


def test_lion_moves_by_signs_of_an_average_and_keeps_another() -> None:
    config = LionConfig(lr=0.25, beta1=0.5, beta2=0.75, weight_decay=0.5)
    weight, momentum = one_matrix(config)[0].detach().clone().double(), torch.zeros(4, 6).double()
    before = weight.clone()
    for gradient in (some(1), -0.3 * some(1) + 0.1 * some(2), some(3)):
        sign = (0.5 * momentum + 0.5 * gradient).sign()
        weight = weight - 0.25 * (sign + 0.5 * weight)
        momentum = 0.75 * momentum + 0.25 * gradient
    found = moved(config, some(1), -0.3 * some(1) + 0.1 * some(2), some(3))
    torch.testing.assert_close(found.double(), weight - before, rtol=1e-5, atol=1e-6)


def test_nadam_looks_ahead_along_its_momentum() -> None:
    config = NAdamConfig(lr=0.1, beta1=0.9, beta2=0.8, eps=1e-8, weight_decay=0.5)
    weight = one_matrix(config)[0].detach().clone().double()
    before, first, second, product = weight.clone(), torch.zeros(4, 6), torch.zeros(4, 6), 1.0
    for t, gradient in enumerate((some(1), some(2), some(3)), start=1):
        now, ahead = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * n)) for n in (t, t + 1))
        product *= now
        first, second = 0.9 * first + 0.1 * gradient, 0.8 * second + 0.2 * gradient**2
        mean = ahead * first / (1 - product * ahead) + (1 - now) * gradient / (1 - product)
        weight = weight - 0.1 * 0.5 * weight
        weight = weight - 0.1 * mean / ((second / (1 - 0.8**t)).sqrt() + 1e-8)
    found = moved(config, some(1), some(2), some(3))
    torch.testing.assert_close(found.double(), weight - before, rtol=1e-5, atol=1e-6)


def twin_of_adam(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The last step of Adam with betas 0.9 and 0.8, and an epsilon of 1e-6."""
    first, second = torch.zeros(4, 6).double(), torch.zeros(4, 6).double()
    for gradient in gradients:
        first, second = 0.9 * first + 0.1 * gradient, 0.8 * second + 0.2 * gradient**2
    count = len(gradients)
    return first / (1 - 0.9**count) / ((second / (1 - 0.8**count)).sqrt() + 1e-6)


@pytest.mark.parametrize("name", ["lamb", "adamw-scale", "lars", "larc"])
def test_steps_are_relative_to_the_size_of_the_parameter(name: str) -> None:
    options: dict[str, Any] = {"beta1": 0.9, "beta2": 0.8, "eps": 1e-6}
    if name in ("lars", "larc"):
        options = {"momentum": 0.75, "trust": 0.125, "clipped": name == "larc"}
    config: Any = KINDS[name.replace("larc", "lars")](lr=0.25, weight_decay=0.5, **options)
    weight = one_matrix(config)[0].detach().clone().double()
    before, momentum, gradients = weight.clone(), torch.zeros(4, 6).double(), [some(1), some(2)]
    for count, gradient in enumerate(gradients, start=1):
        size = weight.square().sum().sqrt()
        adam = twin_of_adam(gradients[:count])
        if name == "lamb":
            step = adam + 0.5 * weight
            weight = weight - 0.25 * size / step.square().sum().sqrt() * step
        elif name == "adamw-scale":
            weight = weight - 0.25 * 0.5 * weight - 0.25 * size / 24**0.5 * adam
        else:
            local = 0.125 * size / (gradient.double().square().sum().sqrt() + 0.5 * size)
            rate = min(float(local), 0.25) if name == "larc" else 0.25 * local
            momentum = 0.75 * momentum + rate * (gradient + 0.5 * weight)
            weight = weight - momentum
    found = moved(config, *gradients)
    torch.testing.assert_close(found.double(), weight - before, rtol=1e-4, atol=1e-6)


def test_larc_never_steps_further_than_gradient_descent() -> None:
    plain = SGDConfig(lr=0.25, momentum=0.0)
    config: Any = KINDS["lars"](lr=0.25, momentum=0.0, trust=1e6, clipped=True)
    torch.testing.assert_close(moved(config, some()), moved(plain, some()))


def test_agd_finds_its_step_in_the_gradients_of_all_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2, bias=False))
    optimizer = build_optimizer(model, AGDConfig(lr=0.5, weight_decay=0.25))
    shapes = {"0.weight": (4 / 6) ** 0.5, "0.bias": 1.0, "1.weight": (2 / 4) ** 0.5}
    before = {name: p.detach().clone().double() for name, p in model.named_parameters()}
    for number, parameter in enumerate(model.parameters()):
        draw = torch.Generator().manual_seed(number)
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    gradients = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    summary = sum(size * float(gradients[n].norm()) for n, size in shapes.items()) / 3
    step = math.log((1 + math.sqrt(1 + 4 * summary)) / 2) / 3
    optimizer.step()
    for name, parameter in model.named_parameters():
        decayed = before[name] * (1.0 if name.endswith("bias") else 1 - 0.5 * 0.25)
        wanted = decayed - 0.5 * step * shapes[name] * gradients[name] / gradients[name].norm()
        torch.testing.assert_close(parameter.detach().double(), wanted, rtol=1e-5, atol=1e-6)


def test_radam_decays_weights_apart_from_the_gradient() -> None:
    plain = moved(RAdamConfig(lr=0.1, weight_decay=0.0), some())
    decayed = moved(RAdamConfig(lr=0.1, weight_decay=0.5), some())
    weight = one_matrix(RAdamConfig())[0].detach()
    torch.testing.assert_close(decayed, plain - 0.1 * 0.5 * weight)


def test_adafactor_steps_relative_to_the_weights_whatever_the_scale_of_gradients() -> None:
    config = AdafactorConfig(lr=0.25, weight_decay=0.0)
    gradients = [some(n) for n in range(3)]
    usual = moved(config, *gradients)
    for scale in (1e-8, 1e6):
        torch.testing.assert_close(moved(config, *(scale * g for g in gradients)), usual)
    weight = one_matrix(config)[0].detach()
    first = moved(config, gradients[0]).square().mean().sqrt() / weight.square().mean().sqrt()
    assert 0.1 < first <= 0.2501


def test_without_gradients_adafactor_moves_nothing() -> None:
    gradient = some()
    gradient[1] = 0.0
    found = moved(AdafactorConfig(), gradient, gradient)
    assert found.isfinite().all()
    assert not found[1].any()
    assert not moved(AdafactorConfig(), torch.zeros(4, 6)).any()


def test_adafactor_s_fourth_update_is_at_most_half_of_the_weights() -> None:
    found = []
    for lr in (0.25, 0.5, 0.75):
        weight, optimizer = one_matrix(AdafactorConfig(lr=lr, weight_decay=0.0))
        before = weight.detach().clone()
        for factor in (0.0, 0.0, 0.0, 1.0):
            weight.grad = some()
            optimizer.set_factor(factor)
            optimizer.step()
        found.append(weight.detach() - before)
    torch.testing.assert_close(2 * found[0], found[1])
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize("name", KINDS)
def test_it_keeps_as_much_as_memory_is_planned_for(name: str, cpu: Device) -> None:
    config = tiny("crammed", f"optim.name={name}", "model.layers=2", "model.width=64")
    step = build(config, 256, SPECIALS, cpu)
    for parameter in step.parameters:
        parameter.grad = torch.ones_like(parameter)
    step.apply(1.0)
    size = sum(parameter.numel() for parameter in step.parameters)
    kept = sum(t.numel() for p in step.parameters for t in step.optimizer.saved(p).values())
    planned = config.optim.state_per_parameter
    exactly = name != "library"
    assert planned - (1 if exactly else 4) < kept / size < planned + 0.1


def test_without_momentum_sgd_keeps_nothing() -> None:
    config = SGDConfig(lr=0.5, momentum=0.0)
    weight, optimizer = one_matrix(config)
    weight.grad = some()
    optimizer.step()
    assert config.state_per_parameter == 0
    assert not optimizer.state[weight]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "library"])
def test_steps_are_counted_where_the_optimizer_counts_them(name: str) -> None:
    """On a device, a number that a fused optimizer reads there, and others read on the CPU."""
    with torch.device("meta"):
        model = torch.nn.Linear(4, 4)
    optimizer = build_optimizer(model, load_config("crammed-2022", [f"optim.name={name}"]).optim)
    group = next(g for g in optimizer.param_groups if any(p is model.bias for p in g["params"]))
    optimizer.restore(model.bias, {"step": torch.ones(()), "exp_avg": torch.ones(4)})
    devices = {key: value.device.type for key, value in optimizer.state[model.bias].items()}
    assert devices == {"step": "meta" if group.get("fused") else "cpu", "exp_avg": "meta"}
