"""Matrix products in 8 bits: e4m3 forward, e5m2 for gradients, one scale for each tensor.

The split of formats is that of Micikevicius et al. 2022 (section 3.1). Scales are computed from the
tensors themselves, each time. Only the products are in 8 bits; their inputs and outputs are not.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crammed.errors import InputError
from crammed.model.blocks import Linear
from crammed.model.encoder import products_of

MULTIPLE = 16
"""The hardware multiplies matrices whose dimensions are multiples of this."""
_TINY = 1e-12


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` in an 8-bit format, scaled so that its largest value is the format's.

    Returns:
        the tensor, and the float32 scalar that undoes the scale.
    """
    most = torch.finfo(dtype).max
    scale = most / x.abs().amax().float().clamp(min=_TINY)
    # The largest value may round to just above the format's, which has no infinity to show for it.
    return (x.float() * scale).clamp(-most, most).to(dtype), scale.reciprocal()


def scaled_product(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], dtype: torch.dtype, *, fast: bool
) -> Tensor:
    """[M, K] x [K, N] of two `quantised` matrices, added up in float32.

    Args:
        fast: add up in fewer bits where the hardware can; precise enough for the forward pass.
    """
    (left, left_scale), (right, right_scale) = a, b
    left = left.contiguous()
    right = right.t().contiguous().t()  # row-major times column-major is the only kind there is
    return torch._scaled_mm(
        left, right, left_scale, right_scale, out_dtype=dtype, use_fast_accum=fast
    )


class _Product(torch.autograd.Function):
    """x [N, K] with weight [M, K] to [N, M]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        few, by = quantised(x, torch.float8_e4m3fn)
        narrow, narrow_by = quantised(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(few, by, narrow, narrow_by)
        ctx.weight_dtype = weight.dtype
        return scaled_product((few, by), (narrow.t(), narrow_by), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        few, by, narrow, narrow_by = ctx.saved_tensors
        coarse, coarse_by = quantised(gradient, torch.float8_e5m2)
        dtype = gradient.dtype
        of_x = scaled_product((coarse, coarse_by), (narrow, narrow_by), dtype, fast=False)
        of_weight = scaled_product((coarse.t(), coarse_by), (few, by), dtype, fast=False)
        return of_x, of_weight.to(ctx.weight_dtype)


class Float8Linear(Linear):
    """A linear layer with its three products in 8 bits; both widths are multiples of 16."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if lacking := -count % MULTIPLE:  # rows are what the weight's gradient adds up over
            rows = F.pad(rows, (0, 0, 0, lacking))
        product: Tensor = _Product.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        y = product[:count].reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def check_widths(model: nn.Module) -> None:
    """Check that the products of the layers can be in 8 bits.

    Raises:
        InputError: a dimension is not a multiple of `MULTIPLE`.
    """
    for name, linear, _ in products_of(model):
        if linear.in_features % MULTIPLE or linear.out_features % MULTIPLE:
            raise InputError(
                f"compute.fp8=on: {name} is {linear.in_features} x {linear.out_features}, not "
                f"multiples of {MULTIPLE}: change model.width or model.ffn_ratio, or leave fp8 off"
            )
