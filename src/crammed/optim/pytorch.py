"""PyTorch's own optimizers, each for all parameters, in fused form where PyTorch has one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from crammed.config.optim import AdafactorConfig, Moments, SGDConfig
from crammed.optim.parameters import Parameters

ADAFACTOR_EPSILONS = (2e-19, 1e-3)
"""Lower bounds. The first is for gradients: for the mean square of a matrix's, and for the root
mean square of each single number's. The second is for the root mean square of parameters.
PyTorch's default for gradients, 1e-7, is a root mean square of 3e-4 for a matrix, and those of a
large model are smaller. The square of the first must not be 0 in float32, or gradients of 0 become
NaN."""


def with_moments(
    kind: Callable[..., torch.optim.Optimizer], **options: bool
) -> Callable[[Parameters, Moments], list[torch.optim.Optimizer]]:
    """A builder of Adam or one of its relatives, for all parameters.

    Args:
        options: what its class takes besides rate, betas and epsilon.
    """

    def build(parameters: Parameters, config: Moments) -> list[torch.optim.Optimizer]:
        groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
        return [kind(groups, config.lr, betas, config.eps, **options)]

    return build


def adafactor(parameters: Parameters, config: AdafactorConfig) -> list[torch.optim.Optimizer]:
    """Adafactor; stacked queries, keys and values are treated as one matrix."""
    groups, power = parameters.by_decay(config.weight_decay), -config.beta2_power
    return [torch.optim.Adafactor(groups, config.lr, power, ADAFACTOR_EPSILONS)]


def sgd(parameters: Parameters, config: SGDConfig) -> list[torch.optim.Optimizer]:
    """Stochastic gradient descent."""
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.SGD(groups, config.lr, config.momentum)]
