"""The curvature that some optimizers need, from a second pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from crammed.budget import Ledger, Work
from crammed.data.masking import predicted_positions
from crammed.errors import InputError
from crammed.keys import key
from crammed.machine.device import Device
from crammed.training.plan import Planner
from crammed.training.update.build import build
from crammed.training.update.sharpness import DISTANCE
from support.steps import SPECIALS, rows_of, update_of
from support.text import tiny

SOPHIA = ("optim.name=library", "optim.of=SophiaH", "optim.options.update_period=3")


def test_it_is_the_change_of_the_gradient_along_random_signs(cpu: Device) -> None:
    config = tiny("crammed", *SOPHIA, "compute.kernels=compiler")
    step = build(config, 256, SPECIALS, replace(cpu, kernels="compiler", dtype=torch.float32))
    rows, inner = rows_of(8), step.optimizer.of_library
    assert inner is not None
    step.gradients(rows, update_of(8, 3))
    assert inner.curvature is not None
    found = [inner.curvature[parameter] for parameter in step.parameters]
    kept = [p.grad.clone() for p in step.parameters if p.grad is not None]
    inner.curvature = None
    step.discard()
    step.gradients(rows, update_of(8, 4))  # no time to measure
    assert inner.curvature is None
    step.discard()
    count = predicted_positions(0.25, 32)
    with sdpa_kernel(SDPBackend.MATH):
        loss = step.objective.loss(rows, torch.arange(24, 32), count) / (8 * count)
        first = torch.autograd.grad(loss, step.parameters, create_graph=True)
        torch.testing.assert_close(list(first), kept, rtol=1e-4, atol=1e-6)
        signs = [s.sign() for s in signs_of(step.parameters, config.seed)]
        second = torch.autograd.grad(first, step.parameters, signs)
    for sign, exact, each in zip(signs, second, found, strict=True):
        difference = (each - sign * exact).norm()
        assert difference < 0.1 * exact.norm() + 1e-5


def signs_of(parameters: list[torch.nn.Parameter], seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(key(seed, "curvature", 3))
    return [DISTANCE * (2.0 * torch.randint(0, 2, p.shape, generator=draw) - 1) for p in parameters]


def test_only_updates_that_measure_it_cost_twice() -> None:
    config = tiny("crammed", *SOPHIA, "budget.limit=6updates", "batch.ramp=0.0")
    planner, work, costs = Planner(config, 256, None, Ledger(())), Work(), []
    while (update := planner.next(work)) is not None:
        costs.append(update.cost.flops)
        work += update.cost
    plain = costs[1]
    assert costs == [2 * plain, plain, plain, 2 * plain, plain, plain]
    assert config.passes_per_update() == pytest.approx(4 / 3)


def test_it_needs_exact_gradients(cpu: Device) -> None:
    with pytest.raises(InputError, match=r"set compute\.dtype=float32"):
        build(tiny("crammed", *SOPHIA), 256, SPECIALS, replace(cpu, dtype=torch.bfloat16))
