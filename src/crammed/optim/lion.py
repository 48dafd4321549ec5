"""Lion: every weight moves by the same amount, in the direction of the sign of its momentum.

Chen et al. 2023, algorithm 2: one average of the gradient is kept, with `beta2`; the sign is that
of the same average with `beta1`.
"""

from __future__ import annotations

import torch

from crammed.config.optim import LionConfig
from crammed.optim.parameters import Parameters


class Lion(torch.optim.Optimizer):
    """Lion with decoupled weight decay."""

    def __init__(self, parameters: Parameters, config: LionConfig) -> None:
        defaults = {"lr": config.lr, "beta1": config.beta1, "beta2": config.beta2}
        super().__init__(parameters.by_decay(config.weight_decay), defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if "momentum" not in self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            gradients = [p.grad for p in parameters]
            averages = [self.state[p]["momentum"] for p in parameters]
            signs = torch._foreach_lerp(averages, gradients, 1.0 - group["beta1"])
            torch._foreach_sign_(signs)
            torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, signs, alpha=-group["lr"])
            torch._foreach_lerp_(averages, gradients, 1.0 - group["beta2"])
