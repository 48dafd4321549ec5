"""Adafactor, as PyTorch has it."""

from __future__ import annotations

import torch

from crammed.config.optim import AdafactorConfig
from crammed.optim.parameters import Parameters

EPSILONS = (1e-15, 1e-3)
"""The smallest root mean square of gradients, and of parameters, that counts. PyTorch's own for
gradients, 1e-7, is larger than those of rare tokens in a large model."""


def adafactor(parameters: Parameters, config: AdafactorConfig) -> list[torch.optim.Optimizer]:
    """Adafactor for all parameters; queries, keys and values that lie stacked are one matrix."""
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.Adafactor(groups, config.lr, -config.beta2_power, EPSILONS)]
