"""Optimizers whose steps are relative to the size of each parameter: LAMB, AdamWScale, LARS, AGD.

AGD knows that size from the parameter's shape; the others measure it.
Stacked queries, keys and values count as one parameter. A parameter of length 0, such as a bias at
the start, moves as if its steps were not scaled.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from crammed.optim.parameters import Parameters

LEAST_RMS = 1e-3
"""AdamWScale takes no parameter for smaller than this."""
_TINY = 1e-30


class _Relative(torch.optim.Optimizer):
    """Base: `step` moves each parameter by itself, with `_move`; AGD has a step of its own."""

    def __init__(self, parameters: Parameters, config: Any) -> None:
        super().__init__(parameters.by_decay(config.weight_decay), {"lr": config.lr})
        self._config = config

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group["lr"], group["weight_decay"])

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        raise NotImplementedError

    def _adam(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Adam's step, from moments that this updates."""
        state, config = self.state[parameter], self._config
        if "step" not in state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1.0
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1.0 - config.beta1)
        state["exp_avg_sq"].lerp_(gradient.square(), 1.0 - config.beta2)
        mean = state["exp_avg"] / (1.0 - config.beta1**count)
        square = state["exp_avg_sq"] / (1.0 - config.beta2**count)
        step: Tensor = mean / (square.sqrt() + config.eps)
        return step


class Lamb(_Relative):
    """LAMB (You et al. 2020, algorithm 2)."""

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        step = self._adam(parameter, gradient) + decay * parameter
        parameter.sub_(lr * _ratio(parameter.norm(), step.norm()) * step)


class AdamWScale(_Relative):
    """AdamW with steps times the root mean square of the parameter."""

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        step = self._adam(parameter, gradient)
        size = parameter.square().mean().sqrt().clamp(min=LEAST_RMS)
        parameter.mul_(1.0 - lr * decay).sub_(lr * size * step)


class Lars(_Relative):
    """LARS (You et al. 2017, algorithm 1), or LARC."""

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        length = parameter.norm()
        ratio = _ratio(self._config.trust * length, gradient.norm() + decay * length)
        rate = ratio.clamp(max=lr) if self._config.clipped else lr * ratio
        step = rate * (gradient + decay * parameter)
        parameter.sub_(state["momentum"].mul_(self._config.momentum).add_(step))


class AGD(_Relative):
    """Automatic gradient descent (Bernstein et al. 2023, algorithm 1), all parameters at once.

    A matrix [out, in] has the size sqrt(out / in). Every table of embeddings [V, D] counts as a
    decoder's, with sqrt(V / D), even one from which vectors are only looked up.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        moved = [(p, p.grad, g) for g in self.param_groups for p in g["params"]]
        moved = [(p, gradient, g) for p, gradient, g in moved if gradient is not None]
        norms = torch._foreach_norm([gradient for _, gradient, _ in moved])
        sizes = [math.sqrt(len(p) / p.shape[1]) if p.ndim > 1 else 1.0 for p, _, _ in moved]
        summary = torch.stack([s * norm for s, norm in zip(sizes, norms, strict=True)]).mean()
        step = torch.log(0.5 * (1.0 + torch.sqrt(1.0 + 4.0 * summary))) / len(moved)
        for (p, gradient, group), size, norm in zip(moved, sizes, norms, strict=True):
            p.mul_(1.0 - group["lr"] * group["weight_decay"])
            p.sub_(group["lr"] * step * size * gradient / norm.clamp(min=_TINY))


def _ratio(length: Tensor, other: Tensor) -> Tensor:
    """The ratio of two lengths; 1 where one of them is 0."""
    return torch.where((length > 0) & (other > 0), length / other, 1.0)
