"""Residual addition and LayerNorm (Ba et al. 2016) in one pass, and their backward in one pass.

The backward pass of a norm reduces along each row for the input and down each column for the
weight. Compiled from plain PyTorch, it reads its inputs twice. Here each of a fixed number of
programs goes over its rows once, accumulates its column sums in registers, and writes them at the
end.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.errors import InputError
from crammed.kernels.jit import jit, power_of_two, processors, runs_on, tl

WIDEST = 8192
"""Widest row that fits into the registers of one program."""
PROGRAMS = 4
"""Programs of the backward kernel per multiprocessor: enough to hide memory latency."""


def add_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """``total = x + branch`` and ``LayerNorm(total)``, statistics in float32.

    Args:
        x: the residual stream, [..., D].
        branch: what is added to it, [..., D]; its number format may differ from the stream's.
        weight: [D].
        bias: [D], or None.

    Returns:
        The total in the format of `x`, and its norm in the format of `branch`: under autocast the
        stream stays in float32, while the norm goes to a matrix product.

    Raises:
        InputError: the shapes do not fit together.
    """
    if x.shape != branch.shape or weight.shape != x.shape[-1:]:
        raise InputError(
            f"a stream {tuple(x.shape)}, a branch {tuple(branch.shape)} and a norm of "
            f"{weight.numel()} do not fit: stream and branch end in the norm's width"
        )
    if runs_on(x) and x.shape[-1] <= WIDEST:
        total, normed, _, _ = _add_norm(x, branch, weight, bias, eps)
        return total, normed
    return add_norm_reference(x, branch, weight, bias, eps)


def add_norm_reference(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """`add_norm` in plain PyTorch."""
    total = (x + branch).to(x.dtype)
    precise = torch.promote_types(x.dtype, torch.float32)
    bias = None if bias is None else bias.to(precise)
    normed = F.layer_norm(total.to(precise), weight.shape, weight.to(precise), bias, eps)
    return total, normed.to(branch.dtype)


@jit
def _add_norm_forward_kernel(
    x: tl.tensor,
    branch: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * WIDTH + column[None, :]
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    sums = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    sums += tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
    # Backward reads the stored total, so the norm must be computed from that.
    stored = sums.to(total.dtype.element_ty)
    tl.store(total + at, stored, mask=inside)
    value = stored.to(tl.float32)
    centre = tl.sum(value, axis=1) / WIDTH
    centred = tl.where(inside, value - centre[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)
    tl.store(mean + row, centre, mask=row < rows)
    tl.store(rstd + row, scale, mask=row < rows)
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * gain[None, :]
    if BIAS:
        shift = tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        result += shift[None, :]
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@jit
def _add_norm_backward_kernel(
    d_total: tl.tensor,
    d_normed: tl.tensor,
    total: tl.tensor,
    weight: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    d_x: tl.tensor,
    d_branch: tl.tensor,
    d_weights: tl.tensor,
    d_biases: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BIAS: tl.constexpr,
    STREAM: tl.constexpr,
    APART: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([BLOCK], dtype=tl.float32)
    bias_sum = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        centre = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        value = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(d_normed + at, mask=inside, other=0.0).to(tl.float32)
        standard = tl.where(inside, (value - centre[:, None]) * scale[:, None], 0.0)
        inner = slope * gain[None, :]
        along = tl.sum(inner * standard, axis=1) / WIDTH
        shift = tl.sum(inner, axis=1) / WIDTH
        result = (inner - shift[:, None] - standard * along[:, None]) * scale[:, None]
        if STREAM:
            result += tl.load(d_total + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_x + at, result.to(d_x.dtype.element_ty), mask=inside)
        if APART:
            tl.store(d_branch + at, result.to(d_branch.dtype.element_ty), mask=inside)
        weight_sum += tl.sum(slope * standard, axis=0)
        if BIAS:
            bias_sum += tl.sum(slope, axis=0)
    share = program * WIDTH + column
    tl.store(d_weights + share, weight_sum, mask=column < WIDTH)
    if BIAS:
        tl.store(d_biases + share, bias_sum, mask=column < WIDTH)


def _tile(width: int) -> tuple[int, int, int]:
    """Columns and rows of one program's tile, and its warps: 8 to 16 elements per thread."""
    block = power_of_two(width)
    rows = max(1, 2048 // block)
    return block, min(rows, 16), min(16, max(4, block // 512))


@torch.library.custom_op(
    "crammed::add_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor branch, Tensor weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def _add_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Total, norm, and the mean and reciprocal deviation of each row, [...] float32."""
    x, branch = x.contiguous(), branch.contiguous()
    width = x.shape[-1]
    rows = x.numel() // width
    total, normed = torch.empty_like(x), torch.empty_like(branch)
    mean = x.new_empty(x.shape[:-1], dtype=torch.float32)
    rstd = torch.empty_like(mean)
    block, high, warps = _tile(width)
    if rows:
        _add_norm_forward_kernel[(-(-rows // high),)](
            x,
            branch,
            weight,
            weight if bias is None else bias,
            total,
            normed,
            mean,
            rstd,
            rows,
            eps,
            WIDTH=width,
            BLOCK=block,
            ROWS=high,
            BIAS=bias is not None,
            num_warps=warps,
        )
    return total, normed, mean, rstd


@_add_norm.register_fake
def _(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    statistics = x.new_empty(x.shape[:-1], dtype=torch.float32)
    total, normed = x.new_empty(x.shape), branch.new_empty(x.shape)
    return total, normed, statistics, torch.empty_like(statistics)


@torch.library.custom_op(
    "crammed::add_norm_backward",
    mutates_args=(),
    schema="(Tensor? d_total, Tensor d_normed, Tensor total, Tensor weight, Tensor mean,"
    " Tensor rstd, bool bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _add_norm_backward(
    d_total: Tensor | None,
    d_normed: Tensor,
    total: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of stream, branch, weight and bias.

    The branch's is empty if it equals the stream's, and the bias's if there is no bias: the schema
    fixes the number of outputs, and none may alias another.
    """
    d_normed = d_normed.contiguous()
    d_total = None if d_total is None else d_total.contiguous()
    width = total.shape[-1]
    rows = total.numel() // width
    apart = d_normed.dtype != total.dtype
    d_x = torch.empty_like(total)
    d_branch = torch.empty_like(d_normed) if apart else d_normed.new_empty(0)
    block, high, warps = _tile(width)
    programs = max(1, min(-(-rows // high), PROGRAMS * processors(total.device)))
    d_weights = weight.new_empty((programs, width), dtype=torch.float32)
    d_biases = torch.empty_like(d_weights) if bias else d_weights
    _add_norm_backward_kernel[(programs,)](
        d_normed if d_total is None else d_total,
        d_normed,
        total,
        weight,
        mean,
        rstd,
        d_x,
        d_branch if apart else d_x,
        d_weights,
        d_biases,
        rows,
        WIDTH=width,
        BLOCK=block,
        ROWS=high,
        BIAS=bias,
        STREAM=d_total is not None,
        APART=apart,
        num_warps=warps,
    )
    d_weight = d_weights.sum(0).to(weight.dtype)
    d_bias = d_biases.sum(0).to(weight.dtype) if bias else weight.new_empty(0)
    return d_x, d_branch, d_weight, d_bias


@_add_norm_backward.register_fake
def _(
    d_total: Tensor | None,
    d_normed: Tensor,
    total: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    apart = d_normed.dtype != total.dtype
    d_branch = d_normed.new_empty(d_normed.shape if apart else 0)
    return (
        torch.empty_like(total),
        d_branch,
        torch.empty_like(weight),
        torch.empty_like(weight) if bias else weight.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, branch, weight, bias, _ = inputs
    total, _, mean, rstd = output
    ctx.save_for_backward(total, weight, mean, rstd)
    ctx.bias = bias is not None
    ctx.format = branch.dtype
    ctx.set_materialize_grads(False)  # no zeros for an output that is not used


def _backward(
    ctx: Any, d_total: Tensor | None, d_normed: Tensor | None, *_: None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, None]:
    if d_normed is None:
        assert d_total is not None
        return d_total, d_total.to(ctx.format), None, None, None
    total, weight, mean, rstd = ctx.saved_tensors
    d_x, d_branch, d_weight, d_bias = _add_norm_backward(
        d_total, d_normed, total, weight, mean, rstd, ctx.bias
    )
    same = ctx.format == total.dtype
    return d_x, d_x if same else d_branch, d_weight, d_bias if ctx.bias else None, None


_add_norm.register_autograd(_backward, setup_context=_save)
