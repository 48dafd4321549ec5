"""The optimizers, each with the options that it reads.

How each is built, and which parameters it takes, is in its file in `crammed.optim`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crammed.config.base import Beta, PositiveFloat, Section
from crammed.config.choice import KeepsValues


class OptimizerConfig(Section):
    """What every optimizer has."""

    name: str
    lr: PositiveFloat = 1e-3
    """Peak learning rate, which the schedule multiplies."""
    embedding_lr: PositiveFloat | None = None
    """Peak learning rate of the embedding tables; null takes `lr`."""
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.01
    """Applied to everything except biases, norms and learned scales."""
    clip: PositiveFloat | None = 0.5
    """Largest L2 norm of the whole gradient; null never clips."""


class _Moments(OptimizerConfig):
    """What Adam and AdamW read."""

    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-12


class AdamWConfig(_Moments):
    """AdamW (Loshchilov and Hutter 2019), which decays weights apart from the gradient."""

    name: Literal["adamw"] = "adamw"


class AdamConfig(_Moments):
    """Adam (Kingma and Ba 2015), which adds the weight decay to the gradient, as BERT's did."""

    name: Literal["adam"] = "adam"


class MuonConfig(_Moments):
    """Muon (Jordan et al. 2024) for the matrices of the layers, and AdamW for the rest."""

    name: Literal["muon"] = "muon"
    matrix_lr: PositiveFloat = 1e-2
    """Peak learning rate of Muon; `lr` is AdamW's."""
    cautious_decay: bool = False
    """Whether Muon's weight decay spares the weights that an update moves away from 0."""
    momentum: Beta = 0.95
    """Momentum of Muon's updates."""


OptimConfig = Annotated[
    AdamWConfig | AdamConfig | MuonConfig, Field(discriminator="name"), KeepsValues()
]
