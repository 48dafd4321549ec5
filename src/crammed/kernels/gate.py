"""The gate of a feed-forward layer (GLU, Shazeer 2020): activation of one half times the other.

The backward pass recomputes the activation from its input, and writes the gradients of both halves
into one tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crammed.errors import InputError
from crammed.kernels.jit import jit, power_of_two, runs_on, tl
from crammed.model.blocks import ACTIVATIONS

ACTIVATION_NAMES = ("gelu", "gelu_tanh", "relu", "relu2", "silu")
"""The members of `crammed.model.blocks.ACTIVATIONS` that the kernel supports."""
_TILE = 2048


def gate(up: Tensor, activation: str) -> Tensor:
    """``activation(first half) * second half`` of the last dimension.

    Args:
        up: [..., 2 H].
        activation: one of `ACTIVATION_NAMES`.

    Returns:
        [..., H] in the format of `up`.

    Raises:
        InputError: the activation is unknown, or the width cannot be halved.
    """
    if activation not in ACTIVATION_NAMES:
        known = ", ".join(ACTIVATION_NAMES)
        raise InputError(f"unknown activation {activation}: try one of {known}")
    if up.shape[-1] % 2:
        raise InputError(f"a gate cannot halve {up.shape[-1]} features: try an even number")
    if runs_on(up):
        hidden: Tensor = _gate(up, activation)
        return hidden
    return gate_reference(up, activation)


def gate_reference(up: Tensor, activation: str) -> Tensor:
    """`gate` in plain PyTorch."""
    active, passed = up.chunk(2, dim=-1)
    return ACTIVATIONS[activation].function(active) * passed


@jit
def _value_and_slope(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    if ACTIVATION == "gelu":
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        value = x * share
        slope = share + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(y)) / 2 = sigmoid(2 y), with y = sqrt(2 / pi) (x + 0.044715 x^3)
        share = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        value = x * share
        slope = share + value * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif ACTIVATION == "silu":
        share = tl.sigmoid(x)
        value = x * share
        slope = share + value * (1.0 - share)
    elif ACTIVATION == "relu":
        value = tl.maximum(x, 0.0)
        slope = tl.where(x > 0.0, 1.0, 0.0)
    else:
        tl.static_assert(ACTIVATION == "relu2")
        value = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
        slope = 2.0 * tl.maximum(x, 0.0)
    return value, slope


@jit
def _gate_forward_kernel(
    up: tl.tensor,
    hidden: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < HIDDEN)[None, :]
    at = row[:, None] * (2 * HIDDEN) + column[None, :]
    active = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    passed = tl.load(up + at + HIDDEN, mask=inside, other=0.0).to(tl.float32)
    value, _ = _value_and_slope(active, ACTIVATION)
    result = (value * passed).to(hidden.dtype.element_ty)
    tl.store(hidden + row[:, None] * HIDDEN + column[None, :], result, mask=inside)


@jit
def _gate_backward_kernel(
    d_hidden: tl.tensor,
    up: tl.tensor,
    d_up: tl.tensor,
    rows: tl.tensor,
    HIDDEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < HIDDEN)[None, :]
    at = row[:, None] * (2 * HIDDEN) + column[None, :]
    active = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    passed = tl.load(up + at + HIDDEN, mask=inside, other=0.0).to(tl.float32)
    outer = row[:, None] * HIDDEN + column[None, :]
    outer_slope = tl.load(d_hidden + outer, mask=inside, other=0.0).to(tl.float32)
    value, slope = _value_and_slope(active, ACTIVATION)
    d_active = (outer_slope * passed * slope).to(d_up.dtype.element_ty)
    tl.store(d_up + at, d_active, mask=inside)
    tl.store(d_up + at + HIDDEN, (outer_slope * value).to(d_up.dtype.element_ty), mask=inside)


def _tile(hidden: int) -> tuple[int, int]:
    """Columns and rows of one program's tile."""
    block = min(256, power_of_two(hidden))
    return block, _TILE // block if block > 64 else 16


@torch.library.custom_op(
    "crammed::gate", mutates_args=(), schema="(Tensor up, str activation) -> Tensor"
)
def _gate(up: Tensor, activation: str) -> Tensor:
    up = up.contiguous()
    width = up.shape[-1] // 2
    rows = up.numel() // up.shape[-1]
    hidden = up.new_empty((*up.shape[:-1], width))
    block, high = _tile(width)
    if rows:
        _gate_forward_kernel[(-(-rows // high), -(-width // block))](
            up, hidden, rows, HIDDEN=width, ACTIVATION=activation, BLOCK=block, ROWS=high
        )
    return hidden


@_gate.register_fake
def _(up: Tensor, activation: str) -> Tensor:
    return up.new_empty((*up.shape[:-1], up.shape[-1] // 2))


@torch.library.custom_op(
    "crammed::gate_backward",
    mutates_args=(),
    schema="(Tensor d_hidden, Tensor up, str activation) -> Tensor",
)
def _gate_backward(d_hidden: Tensor, up: Tensor, activation: str) -> Tensor:
    d_hidden, up = d_hidden.contiguous(), up.contiguous()
    width = d_hidden.shape[-1]
    rows = up.numel() // up.shape[-1]
    d_up = torch.empty_like(up)
    block, high = _tile(width)
    if rows:
        _gate_backward_kernel[(-(-rows // high), -(-width // block))](
            d_hidden, up, d_up, rows, HIDDEN=width, ACTIVATION=activation, BLOCK=block, ROWS=high
        )
    return d_up


@_gate_backward.register_fake
def _(d_hidden: Tensor, up: Tensor, activation: str) -> Tensor:
    return up.new_empty(up.shape)


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    up, ctx.activation = inputs
    ctx.save_for_backward(up)


def _backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor, None]:
    (up,) = ctx.saved_tensors
    return _gate_backward(d_hidden, up, ctx.activation), None


_gate.register_autograd(_backward, setup_context=_save)
