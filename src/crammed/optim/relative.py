"""Optimizers whose steps are relative to the size of each parameter: LAMB, AdamWScale and LARS.

Stacked queries, keys and values count as one parameter. A parameter of length 0, such as a bias at
the start, moves as if its steps were not scaled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crammed.config.optim import AdamWScaleConfig, LambConfig, LarsConfig
from crammed.optim.parameters import Parameters

LEAST_RMS = 1e-3
"""AdamWScale takes no parameter for smaller than this."""


def lamb(parameters: Parameters, config: LambConfig) -> list[torch.optim.Optimizer]:
    """LAMB (You et al. 2020, algorithm 2)."""
    return [_Lamb(parameters, config)]


def adamw_scale(parameters: Parameters, config: AdamWScaleConfig) -> list[torch.optim.Optimizer]:
    """AdamW with steps times the root mean square of the parameter."""
    return [_AdamWScale(parameters, config)]


def lars(parameters: Parameters, config: LarsConfig) -> list[torch.optim.Optimizer]:
    """LARS (You et al. 2017, algorithm 1)."""
    return [_Lars(parameters, config)]


class _Relative(torch.optim.Optimizer):
    """Base: `_move` moves one parameter."""

    def __init__(self, parameters: Parameters, config: Any) -> None:
        super().__init__(parameters.by_decay(config.weight_decay), {"lr": config.lr})
        self._config = config

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
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


class _Lamb(_Relative):
    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        step = self._adam(parameter, gradient) + decay * parameter
        parameter.sub_(lr * _ratio(parameter.norm(), step.norm()) * step)


class _AdamWScale(_Relative):
    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        step = self._adam(parameter, gradient)
        size = parameter.square().mean().sqrt().clamp(min=LEAST_RMS)
        parameter.mul_(1.0 - lr * decay).sub_(lr * size * step)


class _Lars(_Relative):
    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, decay: float) -> None:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        length = parameter.norm()
        ratio = _ratio(self._config.trust * length, gradient.norm() + decay * length)
        step = lr * ratio * (gradient + decay * parameter)
        parameter.sub_(state["momentum"].mul_(self._config.momentum).add_(step))


def _ratio(length: Tensor, other: Tensor) -> Tensor:
    """The ratio of two lengths; 1 where one of them is 0."""
    return torch.where((length > 0) & (other > 0), length / other, 1.0)
