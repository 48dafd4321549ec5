"""Adam and AdamW, as PyTorch computes them in one fused operation."""

from __future__ import annotations

import torch

from crammed.config.optim import AdamConfig, AdamWConfig, MuonConfig
from crammed.optim.parameters import Parameters, ParamGroup


def adamw(parameters: Parameters, config: AdamWConfig) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters."""
    return [adamw_of(parameters.by_decay(config.weight_decay), config)]


def adam(parameters: Parameters, config: AdamConfig) -> list[torch.optim.Optimizer]:
    """Adam for all parameters."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.Adam(groups, config.lr, betas, config.eps, fused=True)]


def adamw_of(groups: list[ParamGroup], config: AdamWConfig | MuonConfig) -> torch.optim.Optimizer:
    """AdamW for some groups of parameters."""
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.eps, fused=True)
