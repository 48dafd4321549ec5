"""Updates with `crammed.kernels`, whose references run here, are those without."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from crammed.budget import Work
from crammed.config import ComputeConfig, RunConfig
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.kernels.encoder import FusedEncoder
from crammed.machine.device import Device, choose_device
from crammed.optim.build import build_optimizer
from crammed.training.build import new_model
from crammed.training.plan import Update
from crammed.training.step import TrainStep
from support.text import tiny

SPECIALS = Specials(0, 1, 2, 3, 4)


def step_of(config: RunConfig, device: Device) -> TrainStep:
    model = new_model(config, 256, device.torch).train()
    return TrainStep(model, build_optimizer(model, config.optim), config, SPECIALS, device)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_a_fused_update_is_the_plain_one(cpu: Device, dtype: torch.dtype, tolerance: float) -> None:
    config = tiny("crammed", "batch.rows=16")
    rows = torch.randint(5, 256, (16, 32))
    update = Update(0, 0, 16, 1.0, 0.25, Work())
    losses, gradients = [], []
    for fused in (False, True):
        kernels = "triton" if fused else "compiler"
        device = dataclasses.replace(cpu, dtype=dtype, kernels=kernels, microbatch_rows=8)
        step = step_of(config, device)
        assert isinstance(step._copy.encoder, FusedEncoder) is fused
        losses.append(step.gradients(rows, update))
        gradients.append(
            torch.cat([p.grad.flatten() for p in step.parameters if p.grad is not None])
        )
        step.apply(1.0)
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=tolerance)
    difference = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert difference < 2 * tolerance


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.norm=post", "model.final_norm=false", "model.first_attention_norm=true"],
            "pre-norm",
        ),
        (["model.dropout=0.1"], "without dropout"),
        (["model.value_embeddings=true"], "do not know value embeddings"),
        (["model.residual_scalars=true"], "do not know residual scalars"),
        (["masking.z_loss=1e-4"], "does not know masking.z_loss"),
    ],
)
def test_what_the_kernels_do_not_cover_is_refused(
    cpu: Device, overrides: list[str], message: str
) -> None:
    device = dataclasses.replace(cpu, kernels="triton")
    with pytest.raises(InputError, match=rf"compute\.kernels=triton: .*{message}.*; leave it out"):
        step_of(tiny("crammed", *overrides), device)


def test_fused_layers_do_not_recompute(cpu: Device) -> None:
    with pytest.raises(InputError, match="cannot recompute"):
        step_of(tiny("crammed"), dataclasses.replace(cpu, kernels="triton", recomputes=True))


def test_kernels_are_asked_for() -> None:
    assert choose_device(ComputeConfig(device="cpu", kernels="triton")).fused
    assert not choose_device(ComputeConfig(device="cpu")).fused
