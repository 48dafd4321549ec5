"""One update: its loss, its gradients, and what it makes of the weights."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from crammed.config.optim import AdamConfig, AdamWConfig
from crammed.data.masking import Masker
from crammed.machine.device import Device
from crammed.optim.build import build_optimizer
from crammed.training.update.build import build, new_model, step_of
from support.steps import (
    SPECIALS,
    check_compiled,
    check_microbatches,
    needs_compiler,
    rows_of,
    update_of,
)
from support.text import tiny


@pytest.mark.parametrize("parts", [1, 5, 7, 64])
def test_loss_and_gradients_do_not_depend_on_the_microbatch(cpu: Device, parts: int) -> None:
    check_microbatches(tiny(), cpu, parts)


def test_loss_is_the_mean_over_predicted_tokens_of_the_dense_model(cpu: Device) -> None:
    config, rows, small = tiny(), rows_of(6), dataclasses.replace(cpu, microbatch_rows=4)
    loss = build(config, 256, SPECIALS, small).gradients(rows, update_of(6)).item()
    masked = Masker(config.seed, "80-10-10", 4, range(5), 256)(rows, torch.arange(6), 8)
    labels = torch.full_like(rows, -100).scatter(1, masked.positions, masked.labels)
    dense = new_model(config, 256, cpu.torch)(masked.ids)
    expected = F.cross_entropy(dense.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    other = build(tiny("crammed", "masking.z_loss=0.5"), 256, SPECIALS, small)
    more = other.gradients(rows, update_of(6)).item()
    squares = dense.exp().sum(-1).log()[labels != -100] ** 2
    assert more == pytest.approx(loss + 0.5 * squares.mean().item(), rel=1e-5)


# Every shape is compiled: the longer case has two.
@needs_compiler
@pytest.mark.parametrize("count", [16, pytest.param(12, marks=pytest.mark.long)])
def test_compiled_steps_equal_eager_ones(cpu: Device, count: int) -> None:
    device = dataclasses.replace(cpu, microbatch_rows=8)
    check_compiled(tiny("crammed", "model.layers=1"), device, rows=count)


def test_clipping_and_rate_reach_the_weights(cpu: Device) -> None:
    rows = rows_of(6)
    moved = {}
    for clip in ("null", "1e-3"):
        config = tiny(
            "crammed",
            "optim.name=adamw",
            f"optim.clip={clip}",
            "optim.eps=1.0",
            "optim.weight_decay=0.0",
            "model.attention_start=random",
            "model.embedding_std=null",
        )
        model = new_model(config, 256, cpu.torch).train()
        before = [p.detach().clone() for p in model.parameters()]
        step = step_of(model, config, SPECIALS, cpu)
        step.gradients(rows, update_of(6))
        applied = step.apply(500.0)
        assert applied is not None
        norm = applied.item()
        assert all(p.grad is None for p in model.parameters())
        moves = [p - b for p, b in zip(model.parameters(), before, strict=True)]
        moved[clip] = math.sqrt(sum(each.square().sum().item() for each in moves))
        assert norm > 1e-2  # as it was before clipping
    # With so large an eps the step is nearly proportional to the gradient.
    assert moved["1e-3"] == pytest.approx(moved["null"] * 1e-3 / norm, rel=0.1)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_optimizers_equal_their_formulas(name: str) -> None:
    config = tiny("crammed", f"optim.name={name}", "optim.weight_decay=0.1").optim
    assert isinstance(config, AdamWConfig | AdamConfig)
    layer = torch.nn.Linear(3, 2, bias=False).double()
    optimizer = build_optimizer(layer, config)
    weight = layer.weight.detach().clone()
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(step)).double()
        layer.weight.grad = gradient.clone()
        optimizer.step()
        if name == "adam":
            gradient = gradient + 0.1 * weight
        else:
            weight = weight * (1 - config.lr * 0.1)
        m = config.beta1 * m + (1 - config.beta1) * gradient
        v = config.beta2 * v + (1 - config.beta2) * gradient**2
        corrected = (m / (1 - config.beta1**step)), (v / (1 - config.beta2**step))
        weight = weight - config.lr * corrected[0] / (corrected[1].sqrt() + config.eps)
    torch.testing.assert_close(layer.weight.detach(), weight)
