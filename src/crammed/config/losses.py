"""The training losses, each with the options that it reads.

`crammed.training.update.losses` says what each computes. Held-out losses are always
cross-entropies.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crammed.config.base import PositiveFloat, Section
from crammed.schedule import OpenFraction


class LossConfig(Section):
    """Options of every loss."""

    name: str


class CrossEntropyConfig(LossConfig):
    """The cross-entropy of the predicted tokens."""

    name: Literal["cross-entropy"] = "cross-entropy"
    smoothing: OpenFraction = 0.0
    """Share of a target that all tokens have in equal parts (Szegedy et al. 2016)."""


class FocalConfig(LossConfig):
    """Cross-entropy times (1 - p)^gamma, for the probability p of the token (Lin et al. 2017)."""

    name: Literal["focal"] = "focal"
    gamma: PositiveFloat = 2.0


class BalancedConfig(LossConfig):
    """Cross-entropy that counts frequent tokens less."""

    name: Literal["balanced"] = "balanced"
    power: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """A token's weight is its share of the corpus to the power of minus this; with 1, all tokens of
    the vocabulary weigh the same in total."""


class IncorrectOnlyConfig(LossConfig):
    """Cross-entropy of the predictions whose most probable token is another."""

    name: Literal["incorrect-only"] = "incorrect-only"


class ErrorsConfig(LossConfig):
    """Options of losses that take each logit for an estimate: of `target`, or of 0."""

    target: PositiveFloat = 30.0
    """What the logit of the right token should be; all others should be 0."""
    weight: PositiveFloat = 15.0
    """Weight of the error of the right token; the other tokens have 1 each."""


class SquaredConfig(ErrorsConfig):
    """Squared errors of the logits, with the scales of Hui and Belkin (2021) for 1,000 classes."""

    name: Literal["squared"] = "squared"


class AbsoluteConfig(ErrorsConfig):
    """Absolute errors of the logits."""

    name: Literal["absolute"] = "absolute"


class EmbeddingConfig(LossConfig):
    """Squared distance of the hidden state from the token's embedding, which it does not move.

    The logits are not trained by themselves, so held-out losses say little.
    """

    name: Literal["embedding"] = "embedding"


Loss = Annotated[
    CrossEntropyConfig
    | FocalConfig
    | BalancedConfig
    | IncorrectOnlyConfig
    | SquaredConfig
    | AbsoluteConfig
    | EmbeddingConfig,
    Field(discriminator="name"),
]
