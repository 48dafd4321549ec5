"""Gradients where the loss is higher than at the weights themselves (SAM; Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_TINY = 1e-30


@contextmanager
def displaced(parameters: Sequence[nn.Parameter], radius: float) -> Iterator[None]:
    """Have the weights moved by `radius` in all along their gradients, which are dropped.

    The weights are back, to the bit, after this context.
    """
    moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
    before = [parameter.detach().clone() for parameter in moved]
    gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
    with torch.no_grad():
        length = torch.nn.utils.get_total_norm(gradients).clamp(min=_TINY)
        torch._foreach_add_(moved, torch._foreach_mul(gradients, radius / length))
    for parameter in moved:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(moved, before)
