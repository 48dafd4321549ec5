"""Adam and AdamW, in PyTorch's fused form, and RAdam."""

from __future__ import annotations

import torch

from crammed.config.optim import AdamConfig, AdamWConfig, MuonConfig, RAdamConfig
from crammed.optim.parameters import Parameters, ParamGroup


def adamw(parameters: Parameters, config: AdamWConfig) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters."""
    return [adamw_of(parameters.by_decay(config.weight_decay), config)]


def adam(parameters: Parameters, config: AdamConfig) -> list[torch.optim.Optimizer]:
    """Adam for all parameters."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.Adam(groups, config.lr, betas, config.eps, fused=True)]


def radam(parameters: Parameters, config: RAdamConfig) -> list[torch.optim.Optimizer]:
    """RAdam for all parameters; PyTorch has no fused form of it."""
    groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
    return [torch.optim.RAdam(groups, config.lr, betas, config.eps, decoupled_weight_decay=True)]


def adamw_of(groups: list[ParamGroup], config: AdamWConfig | MuonConfig) -> torch.optim.Optimizer:
    """AdamW for these groups of parameters."""
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, config.lr, betas, config.eps, fused=True)
