"""Builds the optimizer that a configuration chooses: a file here, and a line in `_BUILDERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from crammed.config import OptimConfig
from crammed.model.blocks import Embedding, Norm, Scales
from crammed.model.encoder import products_of
from crammed.optim import adafactor, adam, muon, sgd
from crammed.optim.parameters import Parameters

State = dict[str, Tensor]


class Optimizers:
    """One optimizer, or several that share the parameters between them.

    Attributes:
        param_groups: of all of them.
        peaks: the learning rate of each group that the schedule's factor multiplies.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        self._group_of = {p: g for part in parts for g in part.param_groups for p in g["params"]}
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.peaks = [float(group["lr"]) for group in self.param_groups]
        self.state: MutableMapping[Tensor, State] = _States(parts)

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to `factor` times its peak."""
        for group, peak in zip(self.param_groups, self.peaks, strict=True):
            group["lr"] = factor * peak

    def step(self) -> None:
        """Apply the gradients."""
        for part in self._parts:
            part.step()

    def restore(self, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
        """Take over a parameter's state, each tensor where the optimizer would have made it."""
        group = self._group_of[parameter]
        # Where nothing is fused, the CPU counts the steps: their number decides what is launched.
        stays = set() if group.get("fused") else {"step"}
        self.state[parameter] = {
            key: value if key in stays else value.to(parameter.device)
            for key, value in state.items()
        }

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)


class _States(MutableMapping[Tensor, State]):
    """The state of each parameter, whichever optimizer keeps it."""

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


_BUILDERS: dict[str, Callable[[Parameters, Any], list[torch.optim.Optimizer]]] = {
    "adamw": adam.adamw,
    "adam": adam.adam,
    "radam": adam.radam,
    "adafactor": adafactor.adafactor,
    "sgd": sgd.sgd,
    "muon": muon.muon,
}
"""How each choice of `OptimConfig` is built."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizers:
    """The optimizer that a configuration chooses, for all parameters of the model.

    Embeddings and the scale of sinusoidal positions are decayed, as in the reference
    implementation (Geiping and Goldstein 2022); biases and norms are not.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    named = dict(model.named_parameters())
    decayed = named.keys() - _undecayed(model)
    lr = config.embedding_lr
    rates = {} if lr is None else dict.fromkeys(_embeddings(model), lr)
    parameters = Parameters(named, decayed, _matrices(model), rates)
    return Optimizers(*_BUILDERS[config.name](parameters, config))


def _matrices(model: nn.Module) -> dict[str, int]:
    """Names of the layers' matrices, and how many lie stacked in each.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    return {f"{name}.weight": matrices for name, _, matrices in products_of(model)}


def _embeddings(model: nn.Module) -> list[str]:
    """Names of the embedding tables."""
    named = model.named_modules()
    return [f"{name}.weight" for name, module in named if isinstance(module, Embedding)]


def _undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: biases, and all of norms and scales."""
    norms = [(at, norm) for at, norm in model.named_modules() if isinstance(norm, Norm | Scales)]
    inside = {name for at, norm in norms for name, _ in norm.named_parameters(prefix=at)}
    return inside | {name for name, _ in model.named_parameters() if name.endswith("bias")}
