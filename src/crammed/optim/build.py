"""Builds the configured optimizer, in fused form where PyTorch has one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from crammed.config import ModelConfig, OptimConfig
from crammed.config.optim import AdafactorConfig, Moments, SGDConfig
from crammed.machine.lanes import Lanes
from crammed.model.blocks import Affine, Embedding, Norm, Scales
from crammed.model.count import outline
from crammed.model.encoder import products_of
from crammed.optim import library, lion, muon, relative
from crammed.optim.parameters import Parameters

State = dict[str, Tensor]
Part = torch.optim.Optimizer | library.Library
Builder = Callable[[Parameters, Any], Sequence[Part]]
ADAFACTOR_EPSILONS = (2e-19, 1e-3)
"""Lower bounds. The first is for gradients: for the mean square of a matrix's, and for the root
mean square of each single number's. The second is for the root mean square of parameters.
PyTorch's default for gradients, 1e-7, is a root mean square of 3e-4 for a matrix, and those of a
large model are smaller. The square of the first must not be 0 in float32, or gradients of 0 become
NaN."""


class Optimizers:
    """One optimizer, or several that divide the parameters between them.

    Attributes:
        of_library: that of another library, which may keep anything; None if there is none.
        param_groups: the groups of all optimizers.
        peaks: peak learning rate of each group, which the schedule's factor multiplies.
        state: what is kept for each parameter, by whichever optimizer.
    """

    def __init__(self, *parts: Part) -> None:
        self._parts = parts
        theirs = (part for part in parts if isinstance(part, library.Library))
        self.of_library = next(theirs, None)
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
        for part in self._parts:
            part.step()

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
        for part in self._parts:
            part.zero_grad()


def _with_moments(kind: Callable[..., torch.optim.Optimizer], **options: bool) -> Builder:
    """A builder of Adam or one of its relatives, with these options of its class."""

    def build(parameters: Parameters, config: Moments) -> list[torch.optim.Optimizer]:
        groups, betas = parameters.by_decay(config.weight_decay), (config.beta1, config.beta2)
        return [kind(groups, config.lr, betas, config.eps, **options)]

    return build


def _adafactor(parameters: Parameters, config: AdafactorConfig) -> list[torch.optim.Optimizer]:
    """Adafactor; stacked queries, keys and values are treated as one matrix."""
    groups, power = parameters.by_decay(config.weight_decay), -config.beta2_power
    return [torch.optim.Adafactor(groups, config.lr, power, ADAFACTOR_EPSILONS)]


def _sgd(parameters: Parameters, config: SGDConfig) -> list[torch.optim.Optimizer]:
    groups = parameters.by_decay(config.weight_decay)
    return [torch.optim.SGD(groups, config.lr, config.momentum)]


def _ours(kind: Callable[[Parameters, Any], Part]) -> Builder:
    """A builder of one of ours, for all parameters."""
    return lambda parameters, config: [kind(parameters, config)]


_BUILDERS: dict[str, Builder] = {
    "adamw": _with_moments(torch.optim.AdamW, fused=True),
    "adam": _with_moments(torch.optim.Adam, fused=True),
    # PyTorch has no fused forms of these two.
    "radam": _with_moments(torch.optim.RAdam, decoupled_weight_decay=True),
    "nadam": _with_moments(torch.optim.NAdam, decoupled_weight_decay=True),
    "lion": _ours(lion.Lion),
    "lamb": _ours(relative.Lamb),
    "adamw-scale": _ours(relative.AdamWScale),
    "lars": _ours(relative.Lars),
    "agd": _ours(relative.AGD),
    "adafactor": _adafactor,
    "sgd": _sgd,
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
    tables = [f"{at}.weight" for at, m in model.named_modules() if isinstance(m, Embedding)]
    lr = config.embedding_lr
    rates = {} if lr is None else dict.fromkeys(tables, lr)
    decayed = named.keys() - _undecayed(model)
    matrices = {f"{name}.weight": stacked for name, _, stacked in products_of(model)}
    return optimizer_of(Parameters(named, decayed, matrices, rates), config)


def optimizer_of(parameters: Parameters, config: OptimConfig) -> Optimizers:
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


def _undecayed(model: nn.Module) -> set[str]:
    """Names of parameters without weight decay: biases, and all parameters of norms and scales."""
    norms = [
        (at, norm) for at, norm in model.named_modules() if isinstance(norm, Affine | Norm | Scales)
    ]
    inside = {name for at, norm in norms for name, _ in norm.named_parameters(prefix=at)}
    return inside | {name for name, _ in model.named_parameters() if name.endswith("bias")}
