"""Optimizers from a configuration."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from crammed.config import OptimConfig
from crammed.model.blocks import Norm
from crammed.model.encoder import products_of
from crammed.optim.muon import Muon

State = dict[str, Tensor]


class Optimizers:
    """One optimizer, or two that share the parameters between them.

    Attributes:
        param_groups: of all of them.
        peaks: the largest learning rate of each group, which a schedule multiplies.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.peaks = [float(group["lr"]) for group in self.param_groups]
        self.state: MutableMapping[Tensor, State] = _States(parts)

    def set_share(self, share: float) -> None:
        """Set every learning rate to this share of its peak."""
        for group, peak in zip(self.param_groups, self.peaks, strict=True):
            group["lr"] = share * peak

    def step(self) -> None:
        """Apply the gradients."""
        for part in self._parts:
            part.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)


class _States(MutableMapping[Tensor, State]):
    """The state of each parameter, wherever it is kept."""

    def __init__(self, parts: tuple[torch.optim.Optimizer, ...]) -> None:
        self._of = {
            parameter: part.state
            for part in parts
            for group in part.param_groups
            for parameter in group["params"]
        }

    def __getitem__(self, parameter: Tensor) -> State:
        state: State = self._of[parameter][parameter]
        return state

    def __setitem__(self, parameter: Tensor, state: State) -> None:
        self._of[parameter][parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of[parameter][parameter]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizers:
    """Build the optimizer, with weight decay on everything but biases and norms.

    Embeddings and the scale of sinusoidal positions decay too, as in the reference implementation
    of the paper. `adamw` decouples the decay (Loshchilov and Hutter 2019), `adam` adds it to the
    gradient, as BERT's original optimizer did. `muon` takes the matrices of the layers, and AdamW
    the rest.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    declared, undecayed = _matrices(model), _undecayed(model)
    matrices = declared if config.name == "muon" else {}
    rest = [(n, p) for n, p in model.named_parameters() if n not in matrices]
    groups = [
        {"params": [p for n, p in rest if n not in undecayed], "weight_decay": config.weight_decay},
        {"params": [p for n, p in rest if n in undecayed], "weight_decay": 0.0},
    ]
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    betas = (config.beta1, config.beta2)
    adam = kind(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)
    if not matrices:
        return Optimizers(adam)
    named = dict(model.named_parameters())
    stacks: list[dict[str, Any]] = [
        {"params": [named[name] for name, parts in matrices.items() if parts == count]}
        | {"parts": count}
        for count in sorted(set(matrices.values()))
    ]
    muon = Muon(stacks, config.matrix_lr, config.momentum, config.weight_decay)
    return Optimizers(adam, muon)


def _matrices(model: nn.Module) -> dict[str, int]:
    """Names of the layers' matrices, and how many lie stacked in each.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    return {f"{name}.weight": matrices for name, _, matrices in products_of(model)}


def _undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: biases and everything in a norm."""
    norms = [(at, norm) for at, norm in model.named_modules() if isinstance(norm, Norm)]
    inside = {name for at, norm in norms for name, _ in norm.named_parameters(prefix=at)}
    return inside | {name for name, _ in model.named_parameters() if name.endswith("bias")}
