"""The head's product and its cross-entropy in one buffer, for updates that are not compiled.

Step by step, PyTorch holds four matrices of [N, V]: logits, their log-softmax, and the gradients of
both. On a CPU, moving those takes as long as the products of a narrow head. Here the logits turn
into exponentials and then into the gradient, in place. Rows of the hidden states, which are
narrower, are scaled instead of rows of the gradient. On a GPU the compiler merges most of these
passes, and it does not support a function that overwrites its own results.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """Sum of the rows' losses, a scalar that can be differentiated once.

    Args:
        hidden: [N, D], float32 or float64, as are all but the labels.
        weight: [V, D].
        bias: [V], or None.
        labels: [N] int64, from 0 to V - 1.
    """
    total: Tensor = _InPlace.apply(hidden, weight, bias, labels)  # type: ignore[no-untyped-call]
    return total


def linear_cross_entropy_reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """`linear_cross_entropy` step by step."""
    return F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
    ) -> Tensor:
        labels = labels[:, None]
        x = F.linear(hidden, weight, bias)
        x -= x.amax(-1, keepdim=True)
        own = x.gather(1, labels)  # before the exponentials, which may underflow
        sums = x.exp_().sum(-1, keepdim=True)
        # From here on x is the gradient of the logits, except that rows are not divided by sums.
        x.scatter_add_(1, labels, -sums)
        ctx.save_for_backward(x, sums, hidden, weight)
        ctx.has_bias = bias is not None
        return (sums.log() - own).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, sums, hidden, weight = ctx.saved_tensors
        scale = outer / sums
        for_bias = torch.mv(x.t(), scale.squeeze(1)) if ctx.has_bias else None
        return (x @ weight).mul_(scale), x.t() @ (hidden * scale), for_bias, None
