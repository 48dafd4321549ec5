"""The optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crammed.config.base import Beta, PositiveFloat, Section


class OptimConfig(Section):
    """The optimizer. Weight decay is on matrices, embeddings and the position scale only."""

    name: Literal["adamw", "adam", "muon"] = "adamw"
    """`adam` adds the decay to the gradient, `adamw` decouples it; `muon` takes the matrices of the
    layers, and AdamW the rest."""
    lr: PositiveFloat = 1e-3
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-12
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    clip: PositiveFloat | None = 0.5
    """Largest L2 norm of the whole gradient; null never clips."""
    matrix_lr: PositiveFloat = 1e-2
    """Peak learning rate of `muon`; `lr` is AdamW's."""
    momentum: Beta = 0.95
    """Of `muon`."""
