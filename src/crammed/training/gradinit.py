"""GradInit: learns how large each tensor of a new model should be (Zhu et al. 2021).

Every initial tensor w is multiplied by a scale s of its own. The scales are learned on a few
batches, so that one step of the optimizer from the scaled weights lowers the loss as far as it can,
while the gradient stays within a bound. This follows algorithm 1 of the paper for Adam, whose first
step is the gradient's sign and whose gradients are measured by the sum of their absolute values
(their l1 norm). As in the authors' public code, Adam learns the scales, with `BETAS`.

The norm's gradient has second derivatives, which neither attention in one kernel nor the loss in
place has, and 16 bits are too coarse for: the model is computed in float32, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from crammed.budget import Work
from crammed.config import GradInitConfig, RunConfig
from crammed.data.masking import predicted_positions
from crammed.machine.device import refusing_full_memory
from crammed.model.count import run_flops_per_token
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.step import TrainStep

BETAS = (0.9, 0.98)
LEAST = 0.01
"""No scale gets smaller (alpha in the paper)."""
PASSES = 3.0
"""What an update of the scales costs, in gradients of one batch: three for the norm and its
gradient. It would be two where the norm is within its bound, but that is not known beforehand."""

Loss = Callable[[Sequence[Tensor], int], Tensor]
"""(weights, number of a batch) -> its mean loss."""


def scaled_objective(
    start: Sequence[Tensor], scales: Tensor, loss: Loss, number: int, config: GradInitConfig
) -> Tensor:
    """What update `number` of the scales lowers (algorithm 1, lines 4 to 11).

    Args:
        start: the initial weights, T tensors.
        scales: [T].

    Returns:
        the l1 norm of the gradient if it is above `config.bound`; else the loss of another batch
        after a step of `config.lr` against the gradient's sign.
    """
    weights = [s * w for s, w in zip(scales.unbind(), start, strict=True)]
    gradients = torch.autograd.grad(
        loss(weights, 2 * number), weights, create_graph=True, materialize_grads=True
    )
    norm = torch.stack([gradient.abs().sum() for gradient in gradients]).sum()
    if norm > config.bound:
        return norm
    moved = [w - config.lr * g.detach().sign() for w, g in zip(weights, gradients, strict=True)]
    return loss(moved, 2 * number + 1)


def learned_scales(
    start: Sequence[Tensor],
    loss: Loss,
    config: GradInitConfig,
    show: Callable[[float], None] = lambda _: None,
) -> Tensor:
    """The scales of some initial weights, [T].

    Args:
        start: T tensors of one number format, on one device.
        show: called with the share that is done after each update of the scales.
    """
    scales = torch.ones(len(start), dtype=start[0].dtype, device=start[0].device)
    scales.requires_grad_()
    optimizer = torch.optim.Adam([scales], config.rate, BETAS)
    for number in range(config.updates):
        objective = scaled_objective(start, scales, loss, number, config)
        (scales.grad,) = torch.autograd.grad(objective, scales)
        optimizer.step()
        with torch.no_grad():
            scales.clamp_(min=LEAST)
        show((number + 1) / config.updates)
    return scales.detach()


class _Loss(nn.Module):
    """An objective as a module, whose parameters `functional_call` can replace."""

    def __init__(self, objective: MaskedTokens) -> None:
        super().__init__()
        self.copy = objective.copy
        self._objective = objective

    def forward(self, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        return self._objective.loss(rows, numbers, count)


def begin_with_scales(
    config: RunConfig,
    scaling: GradInitConfig,
    step: TrainStep,
    rows: NDArray[np.int64],
    show: Callable[[float], None] = lambda _: None,
) -> Tensor:
    """Multiply the weights of a new model by scales that are learned from some rows.

    Args:
        rows: [R, S] token ids, read in turn; if they are too few, again with other masks.

    Returns:
        the scales, in the order of the parameters.

    Raises:
        InputError: a batch does not fit into the device's memory.
    """
    assert isinstance(step.objective, MaskedTokens)
    module = _Loss(step.objective.twice_differentiable(step.model))
    names, weights = zip(*module.named_parameters(), strict=True)
    device, size = weights[0].device, scaling.rows
    count = predicted_positions(config.mask_rate_at(0.0), config.data.row_length)

    def loss(at: Sequence[Tensor], number: int) -> Tensor:
        places = np.arange(number * size, (number + 1) * size)
        batch = torch.from_numpy(rows.take(places, 0, mode="wrap")).to(device)
        given = (batch, torch.from_numpy(places).to(device), count)
        total: Tensor = functional_call(module, dict(zip(names, at, strict=True)), given)
        return total / (count * size)

    fault = f"train.grad_init.rows={size} rows do not fit into the memory of {step.device.name}"
    with refusing_full_memory(f"{fault}: lower it"), sdpa_kernel(SDPBackend.MATH):
        scales = learned_scales([w.detach() for w in weights], loss, scaling, show)
    with torch.no_grad():
        torch._foreach_mul_(list(weights), list(scales.unbind()))
    return scales


def scaling_work(config: RunConfig, vocab_size: int) -> Work:
    """The FLOPs of `begin_with_scales`; its rows are read again by training, and count there."""
    if (scaling := config.train.grad_init) is None:
        return Work()
    length = config.data.row_length
    predicted = predicted_positions(config.mask_rate_at(0.0), length)
    once = run_flops_per_token(config, vocab_size, predicted) / config.passes_per_update()
    return Work(flops=PASSES * scaling.updates * scaling.rows * length * once)
