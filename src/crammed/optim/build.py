"""Builds the configured optimizer. `_BUILDERS` lists a function for each kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from crammed.config import ModelConfig, OptimConfig
from crammed.machine.lanes import Lanes
from crammed.model.blocks import Affine, Embedding, Norm, Scales
from crammed.model.count import outline
from crammed.model.encoder import products_of
from crammed.optim import library, lion, muon, pytorch, relative
from crammed.optim.parameters import Parameters

State = dict[str, Tensor]
Part = torch.optim.Optimizer | library.Library


class Optimizers:
    """One optimizer, or several that divide the parameters between them.

    Attributes:
        param_groups: the groups of all optimizers.
        peaks: peak learning rate of each group, which the schedule's factor multiplies.
        state: what is kept for each parameter, by whichever optimizer.
    """

    def __init__(self, *parts: Part) -> None:
        self._parts = parts
        self._group_of = {p: g for part in parts for g in part.param_groups for p in g["params"]}
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.peaks = [float(group["lr"]) for group in self.param_groups]
        self.state: dict[Tensor, State] = defaultdict(dict)
        for part in parts:  # no parameter is in two of them
            part.state = self.state

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to `factor` times its peak."""
        for group, peak in zip(self.param_groups, self.peaks, strict=True):
            group["lr"] = factor * peak

    def share_among(self, lanes: Lanes) -> None:
        """Have the costly part of an update divided among lanes."""
        for part in self._parts:
            if isinstance(part, muon.Muon):
                part.lanes = lanes

    def step(self) -> None:
        """Apply the gradients."""
        for part in self._parts:
            part.step()

    @property
    def of_library(self) -> library.Library | None:
        """The optimizer of another library, which may keep anything; None if there is none."""
        return next((part for part in self._parts if isinstance(part, library.Library)), None)

    def saved(self, parameter: Tensor) -> State:
        """A parameter's state, as a checkpoint keeps it."""
        inner = self.of_library
        return self.state[parameter] if inner is None else inner.saved(parameter)

    def restore(self, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
        """Load a parameter's state, each tensor on the device where the optimizer would keep it."""
        if self.of_library is not None:
            self.of_library.restore(parameter, state)
            return
        group = self._group_of[parameter]
        # Without fusing, the host needs single numbers to decide what to launch: they stay there.
        stays = set() if group.get("fused") else {"step", "mu_product"}
        self.state[parameter] = {  # copies: what was read may be a file that is mapped
            key: value.to(value.device if key in stays else parameter.device, copy=True)
            for key, value in state.items()
        }

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)


_BUILDERS: dict[str, Callable[[Parameters, Any], Sequence[Part]]] = {
    "adamw": pytorch.with_moments(torch.optim.AdamW, fused=True),
    "adam": pytorch.with_moments(torch.optim.Adam, fused=True),
    # PyTorch has no fused forms of these two.
    "radam": pytorch.with_moments(torch.optim.RAdam, decoupled_weight_decay=True),
    "nadam": pytorch.with_moments(torch.optim.NAdam, decoupled_weight_decay=True),
    "lion": lion.lion,
    "lamb": lambda parameters, config: [relative.Lamb(parameters, config)],
    "adamw-scale": lambda parameters, config: [relative.AdamWScale(parameters, config)],
    "lars": lambda parameters, config: [relative.Lars(parameters, config)],
    "agd": lambda parameters, config: [relative.AGD(parameters, config)],
    "adafactor": pytorch.adafactor,
    "sgd": pytorch.sgd,
    "muon": muon.muon,
    "library": library.library,
}
"""Builders by the name of the optimizer in `OptimConfig`."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizers:
    """The configured optimizer, for all parameters of the model.

    Weight decay applies to embeddings and the scale of sinusoidal positions, as in the reference
    implementation (Geiping and Goldstein 2022), but not to biases and norms.

    Raises:
        TypeError: a layer has a matrix that no block declares.
    """
    named = dict(model.named_parameters())
    decayed = named.keys() - _undecayed(model)
    lr = config.embedding_lr
    rates = {} if lr is None else dict.fromkeys(_embeddings(model), lr)
    return optimizer_of(Parameters(named, decayed, _matrices(model), rates), config)


def optimizer_of(parameters: Parameters, config: OptimConfig) -> Optimizers:
    """The configured optimizer, for these parameters."""
    return Optimizers(*_BUILDERS[config.name](parameters, config))


def update_flops(
    model: ModelConfig,
    vocab_size: int,
    optimizer: OptimConfig,
    layers: int | None = None,
    generator: ModelConfig | None = None,
) -> int:
    """FLOPs of the matrix products of an update itself, after its gradients.

    Args:
        layers: how many layers are in use; None for all.
        generator: the model's; None if it has none.

    Raises:
        InputError: the optimizer of another library is missing or cannot be used.
    """
    used = {"layers": layers or model.layers}
    model = model.model_copy(update=used)
    generator = generator and generator.model_copy(update=used)
    if optimizer.name == "library":
        return library.library_flops(model, vocab_size, optimizer, generator)
    return _muon_flops(model, generator) if optimizer.name == "muon" else 0


@lru_cache(maxsize=64)
def _muon_flops(model: ModelConfig, generator: ModelConfig | None) -> int:
    products = products_of(outline(model, 1, generator))
    shapes = ((matrices, *product.weight.shape) for _, product, matrices in products)
    return sum(n * muon.orthogonalisation_flops(rows // n, columns) for n, rows, columns in shapes)


def _matrices(model: nn.Module) -> dict[str, int]:
    """Names of the layers' matrices, and how many equal matrices are stacked in each."""
    return {f"{name}.weight": matrices for name, _, matrices in products_of(model)}


def _embeddings(model: nn.Module) -> list[str]:
    """Names of the embedding tables."""
    named = model.named_modules()
    return [f"{name}.weight" for name, module in named if isinstance(module, Embedding)]


def _undecayed(model: nn.Module) -> set[str]:
    """Names of parameters without weight decay: biases, and all parameters of norms and scales."""
    norms = [
        (at, norm) for at, norm in model.named_modules() if isinstance(norm, Affine | Norm | Scales)
    ]
    inside = {name for at, norm in norms for name, _ in norm.named_parameters(prefix=at)}
    return inside | {name for name, _ in model.named_parameters() if name.endswith("bias")}
