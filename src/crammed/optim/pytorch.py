"""PyTorch's own optimizers, each for all parameters, in fused form where PyTorch has one."""

from __future__ import annotations

import torch

from crammed.config.optim import (
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    NAdamConfig,
    RAdamConfig,
    SGDConfig,
)
from crammed.optim.parameters import Parameters, ParamGroup

ADAFACTOR_EPSILONS = (2e-19, 1e-3)
"""Lower bounds. The first is for gradients: for the mean square of a matrix's, and for the root
mean square of each single number's. The second is for the root mean square of parameters.
PyTorch's default for gradients, 1e-7, is a root mean square of 3e-4 for a matrix, and those of a
large model are smaller. The square of the first must not be 0 in float32, or gradients of 0 become
NaN."""


def adamw(parameters: Parameters, config: AdamWConfig) -> list[torch.optim.Optimizer]:
    """AdamW."""
    return [adamw_of(parameters.by_decay(config.weight_decay), config)]


def adam(parameters: Parameters, config: AdamConfig) -> list[torch.optim.Optimizer]:
    """Adam."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.Adam(groups, config.lr, betas, config.eps, fused=True)]


def radam(parameters: Parameters, config: RAdamConfig) -> list[torch.optim.Optimizer]:
    """RAdam, of which PyTorch has no fused form."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.RAdam(groups, config.lr, betas, config.eps, decoupled_weight_decay=True)]


def nadam(parameters: Parameters, config: NAdamConfig) -> list[torch.optim.Optimizer]:
    """NAdam, of which PyTorch has no fused form."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.NAdam(groups, config.lr, betas, config.eps, decoupled_weight_decay=True)]


def adafactor(parameters: Parameters, config: AdafactorConfig) -> list[torch.optim.Optimizer]:
    """Adafactor; stacked queries, keys and values are treated as one matrix."""
    groups, power = parameters.by_decay(config.weight_decay), -config.beta2_power
    return [torch.optim.Adafactor(groups, config.lr, power, ADAFACTOR_EPSILONS)]


def sgd(parameters: Parameters, config: SGDConfig) -> list[torch.optim.Optimizer]:
    """Stochastic gradient descent."""
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.SGD(groups, config.lr, config.momentum, fused=True)]


def adamw_of(groups: list[ParamGroup], config: AdamWConfig | MuonConfig) -> torch.optim.Optimizer:
    """AdamW for these groups of parameters."""
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.eps, fused=True)
