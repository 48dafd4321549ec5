"""8-bit products beside products of the same rounded numbers in float32."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from crammed.config import ModelConfig
from crammed.machine.device import Device
from crammed.model.blocks import Linear
from crammed.model.encoder import MaskedLM
from crammed.training.distributed import Group, _gradients
from crammed.training.update.float8 import (
    BACKWARD,
    FORWARD,
    MARGIN,
    Float8Linear,
    Float8Scales,
    quantised,
)
from crammed.training.update.precision import training_copy
from crammed.training.update.step import TrainStep
from support.steps import rows_of, step_with, update_of
from support.text import tiny
from support.variants import COMPUTED, VOCAB

E4M3, E5M2 = FORWARD, BACKWARD
EIGHT = {"dtype": torch.bfloat16, "fp8": True}


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As `quantised` and back, in float64."""
    most = torch.finfo(dtype).max
    by = x.abs().max().float() / most
    return (x.float() * by.reciprocal()).clamp(-most, most).to(dtype).double() * by.double()


class _Slow(torch.autograd.Function):
    """The reference implementation: nothing but the rounding is in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (rounded(x, E4M3) @ rounded(weight, E4M3).T).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        g = rounded(gradients[0], E5M2)
        return (g @ rounded(weight, E4M3)).to(x.dtype), (g.T @ rounded(x, E4M3)).to(weight.dtype)


def in_float32(
    a: Tensor, b: Tensor, by_a: Tensor, by_b: Tensor, *, out_dtype: torch.dtype, **_: bool
) -> Tensor:
    """What `torch._scaled_mm` computes: a product of 8-bit numbers, times both scales."""
    return ((a.float() @ b.float()) * (by_a * by_b)).to(out_dtype)


@pytest.fixture
def fast_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float32 what some processors take seconds for: one product of 512 x 64 x 192."""
    monkeypatch.setattr(torch, "_scaled_mm", in_float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fast_products_are_those_of_the_library(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    a, by_a = quantised(torch.randn(16, 32, generator=draw), E5M2)
    b, by_b = quantised(torch.randn(48, 32, generator=draw), E4M3)
    ours = in_float32(a, b.t(), by_a, by_b, out_dtype=dtype)
    library = torch._scaled_mm(a, b.t(), by_a, by_b, out_dtype=dtype)
    torch.testing.assert_close(
        ours, library, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@given(st.integers(-30, 30), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_quantising_uses_the_whole_range_at_any_size(
    dtype: torch.dtype, exponent: int, seed: int
) -> None:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    few, by = quantised(x, dtype)
    assert few.dtype == dtype
    assert few.float().abs().max() == torch.finfo(dtype).max
    again = few.float() * by
    bits = 3 if dtype == E4M3 else 2
    # Half of the last bit, or of the smallest number that the format has.
    smallest = torch.finfo(dtype).smallest_normal * 2.0**-bits * by
    assert ((again - x).abs() <= x.abs() * 2.0 ** -(bits + 1) * 1.01 + smallest).all()


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_zeros_stay_zeros_and_what_is_not_finite_is_seen(value: float) -> None:
    few, by = quantised(torch.tensor([[value, 1e-30 if value == 0.0 else 1.0]]), E4M3)
    again = few.float() * by
    if value == 0.0:
        assert again.abs().max() < 1e-12
    else:
        assert not again.isfinite().all()


def layer_of(bias: bool, draw: torch.Generator) -> Float8Linear:
    layer = Linear(48, 80, bias=bias)
    layer.start(0.02, draw)
    Float8Linear.take_over(layer)
    assert isinstance(layer, Float8Linear)
    return layer


@pytest.mark.parametrize("shape", [(32,), (3, 16), (5, 7), (1, 1), (2, 3, 4)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_linear_layer_and_its_gradients_are_those_of_the_reference(
    shape: tuple[int, ...], bias: bool, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(len(shape))
    layer = layer_of(bias, draw)
    layer.measuring = True
    x = torch.randn(*shape, 48, generator=draw).to(dtype)
    out = torch.randn(*shape, 80, generator=draw).to(dtype) * 1e-4
    fast, slow = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = layer(fast)
    y.backward(out)
    weight = layer.weight.detach().clone().requires_grad_()
    expected: Tensor = _Slow.apply(slow.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
    expected = expected.unflatten(0, shape)
    if layer.bias is not None:
        expected = expected + layer.bias.detach().to(dtype)
    expected.backward(out)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert y.dtype == dtype
    for ours, theirs in ((y, expected), (fast.grad, slow.grad), (layer.weight.grad, weight.grad)):
        assert ours is not None
        assert theirs is not None
        assert ours.shape == theirs.shape
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
    if layer.bias is not None:
        assert layer.bias.grad is not None
        assert (layer.bias.grad - out.float().flatten(0, -2).sum(0)).norm() < 1e-2 * out.norm()


@pytest.mark.parametrize("config", COMPUTED)
def test_the_layers_products_are_in_8_bits_and_nothing_else(config: ModelConfig) -> None:
    model = MaskedLM(config, VOCAB)
    copy = training_copy(model, torch.bfloat16, fp8=True)
    found = {name for name, module in copy.named_modules() if isinstance(module, Float8Linear)}
    layers = model.encoder.layers.named_modules(prefix="encoder.layers")
    assert found == {name for name, module in layers if isinstance(module, nn.Linear)}
    assert not any(isinstance(module, Float8Linear) for module in model.modules())


def test_a_compiler_leaves_nothing_of_the_inputs_to_the_backward_pass() -> None:
    """What it needs of them is made where they are at hand, and they are not computed again."""
    layer = layer_of(False, torch.Generator().manual_seed(0))
    made: dict[str, list[str]] = {}

    def note(where: str) -> Any:
        def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            made[where] = [str(node.target) for node in graph.graph.nodes]
            return make_boxed_func(graph.forward)

        return compiler

    partition = min_cut_rematerialization_partition
    graphs = aot_autograd(
        fw_compiler=note("forward"), bw_compiler=note("backward"), partition_fn=partition
    )
    torch._dynamo.reset()
    x = torch.randn(32, 48).to(torch.bfloat16).requires_grad_()
    torch.compile(lambda x: layer(F.gelu(x)), backend=graphs)(x).sum().backward()
    for operator, forward, backward in (
        ("aten.gelu.default", 1, 0),
        ("aten._scaled_mm.default", 1, 2),
        ("aten.amax.default", 2, 2),
    ):
        assert made["forward"].count(operator) == forward, operator
        assert made["backward"].count(operator) == backward, operator


# --- scales from one update to the next


def scales_of(found: Float8Scales | TrainStep) -> dict[str, float]:
    state = found.state() if isinstance(found, Float8Scales) else found.loss_scale()
    assert state is not None
    return state


def test_scales_are_those_of_the_update_before() -> None:
    """Whatever this update's values are; beyond the margin they saturate."""
    draw = torch.Generator().manual_seed(0)
    layer = layer_of(False, draw)
    scales, x = Float8Scales(layer), torch.randn(32, 48, generator=draw)

    def through(times: float) -> Tensor:
        total: Tensor = layer(times * x).square().sum()
        return total

    scales.measure(lambda: through(1.0))
    by = [scale.item() for scale in layer.scales]
    assert by[0] == pytest.approx(MARGIN * x.abs().max().item() / torch.finfo(E4M3).max)
    scales.note(torch.autograd.grad(through(1.5), scales.numbers))
    assert [scale.item() for scale in layer.scales] == by
    assert through(1e6).item() == through(1e9).item() < torch.inf
    scales.adapt()
    assert layer.scales[0].item() == pytest.approx(1.5 * by[0])
    assert layer.scales[1].item() == pytest.approx(1.5 * by[1], rel=0.1)


def test_scales_stay_where_nothing_useful_was_seen() -> None:
    scales = Float8Scales(layer_of(False, torch.Generator().manual_seed(0)))
    scales.restore({".input": 2.0, ".gradient": 3.0})
    for seen in ((0.0, torch.nan), (torch.inf, 0.0)):
        scales.note([torch.tensor(value) for value in seen])
        scales.adapt()
        assert scales.state() == {".input": 2.0, ".gradient": 3.0}
    scales.note([torch.tensor(1e-40), torch.tensor(1.0)])
    scales.adapt()
    state = scales_of(scales)
    assert state[".gradient"] == pytest.approx(MARGIN / 57344)
    assert 0.0 < 1.0 / state[".input"] < torch.finfo(torch.float32).max, "its reciprocal is finite"


@pytest.mark.usefixtures("fast_products")
def test_what_an_update_sees_does_not_depend_on_its_microbatches(cpu: Device) -> None:
    found = []
    for rows in (64, 16):
        step, _ = step_with(cpu, tiny("crammed"), microbatch_rows=rows, **EIGHT)
        step.gradients(rows_of(64), update_of(64))
        first = scales_of(step)
        step.apply(0.0)
        found.append(scales_of(step))
        assert found[-1] != first
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.usefixtures("fast_products")
def test_processes_share_what_they_have_seen(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has no rows of the first update."""
    busy, idle = (step_with(cpu, tiny("crammed"), **EIGHT)[0] for _ in range(2))
    busy.gradients(rows_of(8), update_of(8))
    assert busy.leaves.scales is not None
    seen = busy.leaves.scales.seen

    def reduce(tensor: Tensor, how: dist.ReduceOp.RedOpType) -> None:
        if how == dist.ReduceOp.MAX:
            tensor.copy_(tensor.maximum(seen))

    monkeypatch.setattr(dist, "all_reduce", reduce)
    _gradients(idle, rows_of(8)[:0], update_of(8), Group(rank=0, size=9))
    for step in (busy, idle):
        step.apply(0.0)
    assert scales_of(idle) == scales_of(busy)


@pytest.mark.usefixtures("fast_products")
def test_an_update_that_does_not_count_leaves_the_scales_alone(cpu: Device) -> None:
    step, _ = step_with(cpu, tiny("crammed"), **EIGHT)
    step.gradients(rows_of(8), update_of(8))
    step.apply(1.0)
    before = scales_of(step)
    step.gradients(1 + rows_of(8).flip(0), update_of(8))
    step.discard()
    assert scales_of(step) == before
    step.gradients(rows_of(8), update_of(8))
    step.apply(1.0)
    assert scales_of(step) != before


def test_compiling_leaves_no_scales_behind(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are compiled with rows of zeros, before anything is known."""
    monkeypatch.setattr(torch, "compile", lambda loss, **options: loss)
    step, _ = step_with(cpu, tiny("crammed"), compile=True, **EIGHT)
    step.prepare([8], [0.25])
    other, _ = step_with(cpu, tiny("crammed"), **EIGHT)
    for each in (step, other):
        each.gradients(rows_of(8), update_of(8))
        each.apply(1.0)
    assert scales_of(step) == scales_of(other)


@pytest.mark.usefixtures("fast_products")
def test_scales_go_through_a_checkpoint_to_the_bit(cpu: Device) -> None:
    first, model = step_with(cpu, tiny("crammed"), **EIGHT)
    for number in range(2):
        first.gradients(rows_of(8, number), update_of(8, number))
        first.apply(1.0)
    kept = json.loads(json.dumps(first.loss_scale()))
    losses = []
    for state in (kept, None, {"value": 1.0, "finite": 0}):
        other, copy = step_with(cpu, tiny("crammed"), **EIGHT)
        copy.load_state_dict(model.state_dict())
        other.restore(state)
        losses.append(other.gradients(rows_of(8, 2), update_of(8, 2)).item())
    assert losses[0] == first.gradients(rows_of(8, 2), update_of(8, 2)).item()
    # A checkpoint of a version without them, or of another format: measured again.
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.usefixtures("fast_products")
def test_as_much_is_learned_from_a_token_as_in_16_bits(cpu: Device) -> None:
    """Rows of sixteen tokens that repeat themselves, which attention can find."""
    shape = ("model.layers=2", "model.width=64", "optim.lr=3e-3")
    rows = [5 + (rows_of(16, number)[:, :8] % 16).repeat(1, 4) for number in range(30)]
    last = {}
    for fp8 in (False, True):
        step, _ = step_with(cpu, tiny("crammed", *shape), dtype=torch.bfloat16, fp8=fp8)
        losses = []
        for number, each in enumerate(rows):
            losses.append(step.gradients(each, update_of(16, number)).item())
            step.apply(1.0)
        last[fp8] = sum(losses[-10:]) / 10
        assert last[fp8] < 0.8 * losses[0]
    assert last[True] == pytest.approx(last[False], rel=0.02)
