"""A second pass of an update, at other weights than the model's.

Its gradients can take the place of the first ones (SAM; Foret et al. 2021), or their difference
shows the curvature, for optimizers that scale their steps by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.keys import key
from crammed.machine.device import Device
from crammed.optim.library import Library

DISTANCE = 1e-3
"""Each weight is moved so far to measure curvature."""
_TINY = 1e-30


@contextmanager
def displaced(weights: Sequence[Tensor], by: Sequence[Tensor]) -> Iterator[None]:
    """Have the weights moved, and no gradients at first; they are back, to the bit, after this."""
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        torch._foreach_add_(list(weights), list(by))
    for weight in weights:
        weight.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(weights), before)


@contextmanager
def uphill(parameters: Sequence[nn.Parameter], radius: float) -> Iterator[None]:
    """Have the weights moved by `radius` in all along their gradients, which are dropped."""
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
    length = torch.nn.utils.get_total_norm(gradients).clamp(min=_TINY)
    with displaced(moved, torch._foreach_mul(gradients, radius / length)):
        yield


class Curvature:
    """Estimates the diagonal of the Hessian (Hutchinson 1989) for an optimizer that needs it.

    Each weight moves by `DISTANCE`, up or down at random, and the change of its gradient in that
    direction is the estimate. Attention in one kernel has no second derivatives.

    Raises:
        InputError: the gradients are too coarse for their differences to say anything.
    """

    def __init__(self, optimizer: Library, config: RunConfig, device: Device) -> None:
        if device.dtype != torch.float32 or device.fp8:
            raise InputError(
                "the curvature of the loss needs exact gradients: set compute.dtype=float32 and "
                "leave out compute.fp8"
            )
        self._optimizer, self._seed = optimizer, config.seed

    @contextmanager
    def measured(self, parameters: Sequence[nn.Parameter], number: int) -> Iterator[None]:
        """Have gradients computed in this context show the curvature; the first ones are kept."""
        draw = torch.Generator().manual_seed(key(self._seed, "curvature", number))
        moved = [parameter for parameter in parameters if parameter.grad is not None]
        first = [parameter.grad for parameter in moved]
        ups = [torch.randint(0, 2, p.shape, generator=draw).to(p.device) for p in moved]
        by = [DISTANCE * (2.0 * up - 1.0) for up in ups]
        with displaced(moved, by):
            yield
        self._optimizer.curvature = {p: torch.zeros_like(p) for p in parameters}
        for parameter, gradient, distance in zip(moved, first, by, strict=True):
            assert parameter.grad is not None
            assert gradient is not None
            change = (parameter.grad - gradient) / distance
            self._optimizer.curvature[parameter] = change
            parameter.grad = gradient
