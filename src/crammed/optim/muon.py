"""Muon: SGD with momentum whose update matrices are made nearly orthogonal.

Jordan et al. 2024, with updates scaled to the root mean square of AdamW's (Liu et al. 2025, section
2.2), so that one learning rate and one weight decay suit both. Matrices of the same shape go
through the iteration as one batch, for fewer and larger products, and (without cautious decay) the
number of launches does not depend on the number of layers; on a CPU, large matrices go one
parameter at a time, which is faster there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from crammed.config.optim import MuonConfig
from crammed.machine.device import native_half
from crammed.machine.lanes import Lanes
from crammed.optim.parameters import Parameters

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial. They trade exact orthogonality for speed: singular values
end up near one."""
ITERATIONS = 5
SMALL = 128
"""Up to this smaller side, matrices go in batches on a CPU: in 16 bits, six matrices of 128 x 128
then need 2.2 ms instead of 8.5; at 256, batches lose in float32 (`records/LOG.md`)."""
_TINY = 1e-7


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrix, for each of [N, M, K].

    Args:
        dtype: number format of the products; bfloat16 is enough.
    """
    a, b, c = COEFFICIENTS
    x = matrices.mT if (tall := matrices.shape[1] > matrices.shape[2]) else matrices
    # The smaller square is cheaper. Normalise first, or a small gradient could vanish in float16.
    x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)).to(dtype)
    # In few launches: in small models, a launch takes longer than its product.
    for _ in range(ITERATIONS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    result: Tensor = x.mT if tall else x
    return result


def orthogonalisation_flops(rows: int, columns: int) -> int:
    """FLOPs of the products of `orthogonalise` for one matrix."""
    small, large = sorted((rows, columns))
    return ITERATIONS * (2 * 2 * small * small * large + 2 * small**3)


def muon(parameters: Parameters, config: MuonConfig) -> list[torch.optim.Optimizer]:
    """`Muon` for the layers' matrices, AdamW for all other parameters."""
    groups = parameters.by_decay(config.weight_decay, matrices=False)
    betas = (config.beta1, config.beta2)
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, config.lr, betas, config.eps, fused=True)
    ]
    if stacks := parameters.stacks():
        options = (config.momentum, config.weight_decay, config.cautious_decay)
        made.append(Muon(stacks, config.matrix_lr, *options))
    return made


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay.

    Args:
        parameters: groups whose parameters are matrices. A group's ``parts`` is the number of
            equal matrices stacked in each (3 where queries, keys and values share one).
        lr: learning rate; the updates it scales have a root mean square of about 0.2, like AdamW's.
        cautious: decay only weights that the update moves towards 0 (Chen et al. 2025).

    Attributes:
        lanes: what the iterations are divided among.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        cautious: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1}
        super().__init__(parameters, defaults)
        self._cautious = cautious
        self.lanes = Lanes()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        together: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        groups: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            groups.append((group, parameters))
            updates = self._with_momentum(parameters, group["momentum"])
            for parameter, update in zip(parameters, updates, strict=True):
                stacked = update.unflatten(0, (group["parts"], -1))
                together[stacked.shape[1:]].append((parameter, stacked))
        made: dict[Tensor, Tensor] = {}
        for (rows, columns), entries in together.items():
            # Entries of an orthogonal matrix shrink with its larger side; AdamW's updates do not.
            scale = 0.2 * max(rows, columns) ** 0.5
            for batch in _batches(entries, self.lanes):
                matrices = torch.cat([stacked for _, stacked in batch])
                orthogonal = _orthogonalised(matrices, self.lanes).mul_(scale)
                # One launch casts all, and lays them out as the parameters are.
                finished = torch.empty_like(matrices).copy_(orthogonal)
                parts = finished.split([len(stacked) for _, stacked in batch])
                for (parameter, _), update in zip(batch, parts, strict=True):
                    made[parameter] = update.flatten(0, 1)
        for group, parameters in groups:
            updates, decay = [made[p] for p in parameters], group["lr"] * group["weight_decay"]
            if self._cautious:
                signs = torch._foreach_mul(parameters, updates)
                torch._foreach_mul_(parameters, [1.0 - decay * (sign > 0) for sign in signs])
            else:
                torch._foreach_mul_(parameters, 1.0 - decay)
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _with_momentum(self, parameters: list[Tensor], momentum: float) -> Sequence[Tensor]:
        """The Nesterov momentum of each parameter's gradient."""
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages = [self.state[p]["momentum"] for p in parameters]
        torch._foreach_lerp_(averages, gradients, 1.0 - momentum)
        return torch._foreach_lerp(gradients, averages, momentum)


def _orthogonalised(matrices: Tensor, lanes: Lanes) -> Tensor:
    """`orthogonalise` for [N, rows, columns], a share of them in each lane."""
    dtype = native_half(matrices.device) or torch.float32
    parts = lanes.map(lambda part: orthogonalise(part, dtype), matrices.chunk(lanes.count))
    made = list(parts)
    return made[0] if len(made) == 1 else torch.cat(made)


def _batches(
    entries: list[tuple[Tensor, Tensor]], lanes: Lanes
) -> list[list[tuple[Tensor, Tensor]]]:
    """Batches for the iteration: all matrices of one shape, or one parameter each."""
    first = entries[0][1]
    if first.device.type != "cpu" or lanes.count > 1 or min(first.shape[1:]) <= SMALL:
        return [entries]
    return [[entry] for entry in entries]
