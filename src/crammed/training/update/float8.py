"""Matrix products in 8 bits: e4m3 forward, e5m2 for gradients, one scale per tensor.

The choice of formats is that of Micikevicius et al. 2022 (section 3.1). Only the products are in 8
bits; their inputs and outputs are not.

The scale of a tensor is known before the tensor is computed: weights take theirs from their own
largest values, once per update; inputs and gradients, from the largest values in the previous
update (section 3.2). So the pass that computes a tensor can write its 8 bits right away, and also
find the largest value for the next update. The hardware needs both factors contiguous along the
dimension that is summed over, so a tensor is also written transposed, for the gradient of the
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crammed.errors import InputError
from crammed.model.blocks import Linear
from crammed.model.encoder import products_of

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""The hardware requires dimensions that are multiples of this."""
MARGIN = 2.0
"""Values up to this many times the previous update's largest fit; larger ones saturate."""
FIRST_ROWS = 16
"""Number of rows whose largest values determine the scales of the first update."""
_TINY = 1e-30


def quantised(x: Tensor, dtype: torch.dtype, by: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`x` in an 8-bit format; values beyond its range saturate.

    Args:
        by: the float32 scalar to divide by; None maps the largest value of `x` to the format's
            largest.

    Returns:
        the tensor, and the scalar to multiply by to undo the scaling.
    """
    most = torch.finfo(dtype).max
    if by is None:
        by = x.abs().amax().float().clamp(min=_TINY) / most
    # Without the clamp, the largest value could round to just above the format's range.
    return (x.float() * by.reciprocal()).clamp(-most, most).to(dtype), by


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude in x [N, K]; by rows first, which the pass that writes x can do."""
    return x.abs().amax(1).float().amax(0)


class _Product(torch.autograd.Function):
    """x [N, K] with weight [M, K] to [N, M].

    The largest values are returned as the gradients of two scalars, so that they pass through
    compiled code, microbatches and recomputed layers as all gradients do.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        narrow: Tensor,
        turned: Tensor,
        narrow_by: Tensor,
        input_by: Tensor | None,
        gradient_by: Tensor | None,
        *largest: Tensor,
    ) -> Tensor:
        few, by = quantised(x.contiguous(), FORWARD, input_by)
        turned_few, seen = few.t().contiguous(), _largest(x)
        ctx.save_for_backward(turned_few, by, turned, narrow_by, gradient_by, seen)
        # A compiler would postpone these two to the backward pass and read or even recompute x
        # there. So the product is made to depend on them; neither changes a number.
        few, by = turned_few.t().contiguous(), torch.where(seen >= 0.0, by, by)
        ctx.weight_dtype = weight.dtype
        return torch._scaled_mm(
            few, narrow.t(), by, narrow_by, out_dtype=x.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        turned_few, by, turned, narrow_by, gradient_by, largest_input = ctx.saved_tensors
        coarse, coarse_by = quantised(gradient.contiguous(), BACKWARD, gradient_by)
        of_x = torch._scaled_mm(coarse, turned.t(), coarse_by, narrow_by, out_dtype=gradient.dtype)
        of_weight = torch._scaled_mm(
            coarse.t().contiguous(), turned_few.t(), coarse_by, by, out_dtype=ctx.weight_dtype
        )
        return of_x, of_weight, *([None] * 5), largest_input, _largest(gradient)


class Float8Linear(Linear):
    """A linear layer with its three products in 8 bits; both widths are multiples of 16.

    Attributes:
        measuring: take the scales of inputs and gradients from these tensors themselves, which
            takes an extra pass.
        largest: two scalars, whose gradients are the largest values of inputs and of gradients.
        scales: divisors of inputs and of gradients.
    """

    measuring: bool
    largest: tuple[Tensor, Tensor]
    scales: tuple[Tensor, Tensor]
    narrow: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def take_over(cls, linear: Linear) -> None:
        """Turn a `Linear` into a `Float8Linear` in place; it keeps its parameters."""
        linear.__class__ = cls
        assert isinstance(linear, Float8Linear)
        one = torch.ones((), device=linear.weight.device)
        linear.measuring = False
        linear.largest = one.clone().requires_grad_(), one.clone().requires_grad_()
        linear.scales = one.clone(), one.clone()
        linear.quantise()

    def quantise(self) -> None:
        """Store the current weight in 8 bits."""
        with torch.no_grad():
            narrow, by = quantised(self.weight, FORWARD)
            self.narrow = narrow, narrow.t().contiguous(), by

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if lacking := -count % MULTIPLE:  # the weight's gradient sums over rows
            rows = F.pad(rows, (0, 0, 0, lacking))
        scales = (None, None) if self.measuring else self.scales
        product: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            rows, self.weight, *self.narrow, *scales, *self.largest
        )
        y = product[:count].reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class Float8Scales:
    """The scales of a model's 8-bit products, from one update to the next.

    Args:
        model: a training copy whose products are `Float8Linear`.

    Attributes:
        numbers: scalars by which losses must also be differentiated, for `note`.
        known: whether the scales are known; if not, call `measure` first.
        seen: the largest values of this update so far; several processes share them.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = {n: m for n, m in model.named_modules() if isinstance(m, Float8Linear)}
        self._layers = list(layers.values())
        self._names = [f"{name}.{of}" for name in layers for of in ("input", "gradient")]
        self._scales = [scale for layer in self._layers for scale in layer.scales]
        self.numbers = [number for layer in self._layers for number in layer.largest]
        limits = [torch.finfo(dtype).max / MARGIN for dtype in (FORWARD, BACKWARD)]
        self._limits = torch.tensor(limits * len(layers), device=self._scales[0].device)
        self.seen = torch.zeros_like(self._limits)
        self.known = False

    def quantise(self) -> None:
        for layer in self._layers:
            layer.quantise()

    def measure(self, loss: Callable[[], Tensor]) -> None:
        """Take scales from the values themselves, if there was no previous update.

        Args:
            loss: computes a loss like those to come.
        """
        for layer in self._layers:
            layer.measuring = True
        try:
            self.note(torch.autograd.grad(loss(), self.numbers))
        finally:
            for layer in self._layers:
                layer.measuring = False
        self.adapt()

    def note(self, largest: Sequence[Tensor]) -> None:
        """Record the largest values of one more microbatch: the gradients of `numbers`."""
        self.seen = torch.maximum(self.seen, torch.stack(list(largest)))

    def adapt(self) -> None:
        """Set the scales for the next update from the largest values of this one.

        The scales of tensors that were all zero, or not finite, stay the same.
        """
        after = self.seen.clamp(min=_TINY) / self._limits
        usable = self.seen.isfinite() & (self.seen > 0.0)
        self._set(torch.where(usable, after, torch.stack(self._scales)))
        self.forget()

    def forget(self) -> None:
        self.seen = torch.zeros_like(self._limits)

    def state(self) -> dict[str, float] | None:
        """The scales for a checkpoint, by name; None if they are not known."""
        if not self.known:
            return None
        return dict(zip(self._names, torch.stack(self._scales).tolist(), strict=True))

    def restore(self, state: Mapping[str, float] | None) -> None:
        """Load the scales of a checkpoint; if they are for other products, measure again."""
        self.forget()
        self.known = False
        if state is not None and state.keys() == set(self._names):
            values = [state[name] for name in self._names]
            self._set(torch.tensor(values, device=self._limits.device))

    def _set(self, scales: Tensor) -> None:
        torch._foreach_copy_(self._scales, list(scales.unbind()))
        self.known = True


def check_widths(model: nn.Module) -> None:
    """Check that the products of the layers can run in 8 bits.

    Raises:
        InputError: a dimension is not a multiple of `MULTIPLE`.
    """
    for name, linear, _ in products_of(model):
        if linear.in_features % MULTIPLE or linear.out_features % MULTIPLE:
            raise InputError(
                f"compute.fp8=on: {name} is {linear.in_features} x {linear.out_features}, not "
                f"multiples of {MULTIPLE}: change model.width or model.ffn_ratio, or leave fp8 off"
            )
