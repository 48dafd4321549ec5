"""PyTorch's Adafactor."""

from __future__ import annotations

import torch

from crammed.config.optim import AdafactorConfig
from crammed.optim.parameters import Parameters

EPSILONS = (2e-19, 1e-3)
"""Lower bounds. The first is for gradients: for the mean square of a matrix's, and for the root
mean square of each single number's. The second is for the root mean square of parameters.
PyTorch's default for gradients, 1e-7, is a root mean square of 3e-4 for a matrix, and those of a
large model are smaller. The square of the first must not be 0 in float32, or gradients of 0 become
NaN."""


def adafactor(parameters: Parameters, config: AdafactorConfig) -> list[torch.optim.Optimizer]:
    """Adafactor for all parameters; stacked queries, keys and values are treated as one matrix."""
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.Adafactor(groups, config.lr, -config.beta2_power, EPSILONS)]
