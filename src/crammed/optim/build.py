"""Optimizers from a configuration."""

from __future__ import annotations

import torch
from torch import nn

from crammed.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW or Adam with weight decay on everything but biases and norms.

    Embeddings and the scale of sinusoidal positions are decayed, as in the reference
    implementation. `adamw` decouples the decay (Loshchilov and Hutter 2019), `adam` adds it to the
    gradient, as BERT's original optimizer did.
    """
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if _decays(n)], "weight_decay": config.weight_decay},
        {"params": [p for n, p in named if not _decays(n)], "weight_decay": 0.0},
    ]
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.name]
    betas = (config.beta1, config.beta2)
    optimizer: torch.optim.Optimizer = kind(
        groups, lr=config.lr, betas=betas, eps=config.eps, fused=True
    )
    return optimizer


def _decays(name: str) -> bool:
    return not any(part.endswith(("bias", "norm")) for part in name.split("."))
