"""Weights that are cast once per update, and gradients that are added up in float32."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from crammed.config import ModelConfig
from crammed.machine.device import Device
from crammed.model.blocks import Linear
from crammed.model.encoder import MaskedLM
from crammed.training.update import objective
from crammed.training.update.float8 import Float8Linear
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.precision import Found, Leaves, training_copy
from support.launches import Launches
from support.steps import rows_of, step_with, update_of
from support.text import tiny
from support.variants import COMPUTED, VOCAB, configuration, random_model, some_ids

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def plain(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def sums(model: MaskedLM, copy: MaskedLM, leaves: Leaves | None) -> dict[str, Tensor]:
    """Gradients of three microbatches."""
    model.zero_grad()
    torch.manual_seed(3)  # for dropout
    for number in range(3):
        ids = (some_ids(4) + number) % VOCAB
        hidden = copy.encoder(ids)
        logits = copy.decode(hidden, None if leaves is None else leaves.decoder)
        loss = logits.float().logsumexp(-1).mean()
        if leaves is None:
            plain(loss)
        else:
            leaves.add(leaves.differentiate(loss))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("config", COMPUTED)
def test_gradients_are_those_of_weights_that_are_cast_each_time(config: ModelConfig) -> None:
    model = random_model(config, dtype=FLOAT32).train()
    for dtype in (BFLOAT16, FLOAT16, FLOAT32):
        expected = sums(model, training_copy(model, dtype), None)
        copy = training_copy(model, dtype)
        leaves = Leaves(copy, decoder=False)
        linear = {leaf.dtype for leaf in leaves.tensors if leaf.ndim > 1}
        cast = {dtype} if config.passes == 1 or config.head_transform else set()
        assert linear == {FLOAT32} | cast, "embeddings are read in float32"
        found = sums(model, copy, leaves)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            assert gradient.dtype == FLOAT32
            assert torch.equal(gradient, expected[name]), name


def test_the_first_gradients_are_cast_in_one_launch_whatever_the_number_of_layers() -> None:
    found = set()
    for layers in (1, 4):
        model = random_model(configuration("crammed", layers=layers), dtype=FLOAT32).train()
        leaves = Leaves(training_copy(model, BFLOAT16), decoder=True)
        gradients = tuple(torch.randn_like(leaf) for leaf in leaves.tensors)
        with Launches() as counted:
            leaves.add(gradients)
        found.add(counted.number)
    assert found == {2}  # the other is the table's gradient as the decoder's


def test_the_decoder_s_cast_changes_the_order_of_sums_alone() -> None:
    model = random_model(configuration("crammed"), dtype=FLOAT32).train()
    expected = sums(model, training_copy(model, BFLOAT16), None)
    copy = training_copy(model, BFLOAT16)
    leaves = Leaves(copy, decoder=True)
    assert leaves.decoder is not None
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    cast = [model.encoder.tokens.weight, *(p for each in linears for p in each.parameters())]
    assert leaves.cast_bytes == 2 * sum(p.numel() for p in cast)
    for name, gradient in sums(model, copy, leaves).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)


def test_8_bit_products_quantise_the_casts() -> None:
    model = random_model(configuration("crammed"), dtype=FLOAT32)
    copy = training_copy(model, BFLOAT16, fp8=True)
    leaves = Leaves(copy, decoder=False)
    shared = {id(leaf) for leaf in leaves.tensors}
    others = [name for name, p in model.named_parameters() if id(p) not in shared]
    casts = {name for name, p in copy.named_parameters() if p.dtype == BFLOAT16}
    assert {"encoder.layers.0.attention.qkv.weight", "head.dense.weight"} <= set(others) == casts
    layer = next(each for each in copy.modules() if isinstance(each, Float8Linear))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    before = layer.narrow[2].item()
    leaves.refresh()
    assert layer.narrow[2].item() == pytest.approx(3.0 * before, rel=1e-2)


class _CastEachTime(Leaves):
    """As if there were none: the modules cast, and PyTorch adds up."""

    def __init__(self, copy: MaskedLM, *, decoder: bool) -> None:
        self.tensors = list(copy.parameters())
        self.decoder = self.scales = None

    def refresh(self) -> None:
        pass

    def differentiate(self, loss: Tensor) -> Found:
        plain(loss)
        return ()

    def add(self, found: Found) -> None:
        pass


@pytest.mark.parametrize("kernels", ["auto", "compiler"])
def test_what_is_not_predicted_needs_nothing_after_the_last_attention(
    cpu: Device, kernels: str
) -> None:
    device = dataclasses.replace(cpu, dtype=FLOAT32, microbatch_rows=4, kernels=kernels)
    found = []
    for reorders in (False, True):
        step, _ = step_with(device, tiny("crammed"))
        assert isinstance(step.objective, MaskedTokens)
        step.objective.reorders = reorders
        loss = step.gradients(rows_of(12), update_of(12))
        found.append([loss, *(p.grad for p in step.parameters if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
def test_updates_are_those_of_weights_that_are_cast_each_time(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    device = dataclasses.replace(cpu, dtype=dtype, microbatch_rows=4)
    weights = []
    for kind in (_CastEachTime, Leaves):
        monkeypatch.setattr(objective, "Leaves", kind)
        step, model = step_with(device, tiny("crammed"))
        for number in range(3):
            step.gradients(rows_of(12, number), update_of(12, number))
            step.apply(1.0)
        weights.append([p.detach().clone() for p in model.parameters()])
    if dtype == FLOAT32:
        assert all(map(torch.equal, *weights))
    else:  # the gradients of the embedding's two uses are added up in another order
        torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
