"""Matrix products in 8 bits: e4m3 forward, e5m2 for gradients, one scale for each tensor.

The split of formats is that of Micikevicius et al. 2022 (section 3.1). Only the products are in 8
bits; their inputs and outputs are not.

The scale of a tensor is known before the tensor is: weights have theirs from their own largest
values, once per update, and inputs and gradients from the largest values that the update before saw
(section 3.2). So the pass that computes a tensor can write its 8 bits at once, and find the largest
value for the next update besides. The hardware wants both factors with the dimension that is summed
over in a row, so that a tensor is also written turned round, for the gradient of the weight.
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
"""The hardware multiplies matrices whose dimensions are multiples of this."""
MARGIN = 2.0
"""How many times the largest value of the update before still fits; beyond, values saturate."""
FIRST_ROWS = 16
"""Rows whose largest values make the first scales, before there is any update."""
_TINY = 1e-30


def quantised(x: Tensor, dtype: torch.dtype, by: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`x` in an 8-bit format, in which the largest numbers stand for those beyond its range.

    Args:
        by: the float32 scalar to divide by; None takes the one that makes the largest value of `x`
            the format's.

    Returns:
        the tensor, and the scalar that undoes the scale.
    """
    most = torch.finfo(dtype).max
    if by is None:
        by = x.abs().amax().float().clamp(min=_TINY) / most
    # The largest value may round to just above the format's, which has no infinity to show for it.
    return (x.float() * by.reciprocal()).clamp(-most, most).to(dtype), by


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude in x [N, K], of rows first, which the pass that writes them can do."""
    return x.abs().amax(1).float().amax(0)


class _Product(torch.autograd.Function):
    """x [N, K] with weight [M, K] to [N, M].

    What is to be known about largest values comes out as the gradient of two scalars, so that it
    takes the way of all gradients through compiled code, microbatches and recomputed layers.
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
        # A compiler would leave these two to the backward pass, and read or even compute x again
        # there. So let the product depend on them; neither changes a number.
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
        measuring: take the scales of inputs and gradients from these themselves, which needs a pass
            of its own.
        largest: of inputs and gradients; two numbers whose gradients these values are.
        scales: what inputs and gradients are divided by.
    """

    measuring: bool
    largest: tuple[Tensor, Tensor]
    scales: tuple[Tensor, Tensor]
    narrow: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def take_over(cls, linear: Linear) -> None:
        """Make one of these of a `Linear`, which keeps its parameters."""
        linear.__class__ = cls
        assert isinstance(linear, Float8Linear)
        one = torch.ones((), device=linear.weight.device)
        linear.measuring = False
        linear.largest = one.clone().requires_grad_(), one.clone().requires_grad_()
        linear.scales = one.clone(), one.clone()
        linear.quantise()

    def quantise(self) -> None:
        """Keep the weight in 8 bits, as it is now."""
        with torch.no_grad():
            narrow, by = quantised(self.weight, FORWARD)
            self.narrow = narrow, narrow.t().contiguous(), by

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if lacking := -count % MULTIPLE:  # rows are what the weight's gradient adds up over
            rows = F.pad(rows, (0, 0, 0, lacking))
        scales = (None, None) if self.measuring else self.scales
        product: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            rows, self.weight, *self.narrow, *scales, *self.largest
        )
        y = product[:count].reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class Scales:
    """The scales of a model's 8-bit products, from one update to the next.

    Args:
        model: a training copy whose products are `Float8Linear`.

    Attributes:
        numbers: what a loss has to be differentiated by besides, for `note`.
        known: whether there was an update to take scales from; if not, `measure` comes first.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = {n: m for n, m in model.named_modules() if isinstance(m, Float8Linear)}
        self._layers = list(layers.values())
        self._names = [f"{name}.{of}" for name in layers for of in ("input", "gradient")]
        self._scales = [scale for layer in self._layers for scale in layer.scales]
        self.numbers = [number for layer in self._layers for number in layer.largest]
        limits = [torch.finfo(dtype).max / MARGIN for dtype in (FORWARD, BACKWARD)]
        self._limits = torch.tensor(limits * len(layers), device=self._scales[0].device)
        self._seen = torch.zeros_like(self._limits)
        self.known = False

    def quantise(self) -> None:
        """Quantise the weights, which have changed."""
        for layer in self._layers:
            layer.quantise()

    def measure(self, loss: Callable[[], Tensor]) -> None:
        """Take scales from the values themselves, where there is no update before.

        Args:
            loss: computes a loss like those that will come.
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
        """Remember the largest values of one more microbatch: the gradients of `numbers`."""
        self._seen = torch.maximum(self._seen, torch.stack(list(largest)))

    def adapt(self) -> None:
        """Take the scales of the next update from what this one saw.

        Those of tensors of zeros, or of some value that is not finite, stay.
        """
        after = self._seen.clamp(min=_TINY) / self._limits
        usable = self._seen.isfinite() & (self._seen > 0.0)
        self._set(torch.where(usable, after, torch.stack(self._scales)))
        self.forget()

    def forget(self) -> None:
        """Drop what this update saw."""
        self._seen = torch.zeros_like(self._limits)

    def state(self) -> dict[str, float] | None:
        """The scales that a checkpoint keeps, by name; None if they are not known."""
        if not self.known:
            return None
        return dict(zip(self._names, torch.stack(self._scales).tolist(), strict=True))

    def restore(self, state: Mapping[str, float] | None) -> None:
        """Take over the scales of a checkpoint; without those of these products, measure again."""
        self.forget()
        self.known = False
        if state is not None and state.keys() == set(self._names):
            values = [state[name] for name in self._names]
            self._set(torch.tensor(values, device=self._limits.device))

    def _set(self, scales: Tensor) -> None:
        torch._foreach_copy_(self._scales, list(scales.unbind()))
        self.known = True


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
