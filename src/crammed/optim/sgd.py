"""Stochastic gradient descent, in PyTorch's fused form."""

from __future__ import annotations

import torch

from crammed.config.optim import SGDConfig
from crammed.optim.parameters import Parameters


def sgd(parameters: Parameters, config: SGDConfig) -> list[torch.optim.Optimizer]:
    """SGD for all parameters."""
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.SGD(groups, config.lr, config.momentum, fused=True)]
