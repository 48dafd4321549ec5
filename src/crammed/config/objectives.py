"""What a model learns from, each with the options that it reads.

`crammed.training.update.objectives` says what each computes. All but `masked` are outside the rules
of Cramming. Held-out losses are always of masked tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crammed.config.base import PositiveFloat, Section, Size
from crammed.config.model import ModelConfig
from crammed.schedule import OpenFraction


class MaskedConfig(Section):
    """Masked tokens, as `masking` and `loss` say."""

    name: Literal["masked"] = "masked"


class ScriptConfig(Section):
    """Masked tokens, and which tokens the model's own guesses have replaced."""

    name: Literal["script"] = "script"
    weight: PositiveFloat = 1.0
    """Weight of the second part: the mean over all tokens of a cross-entropy of two classes."""


class CausalFirstConfig(Section):
    """The next token, from those before it, in the first part of the run; then masked tokens."""

    name: Literal["causal-first"] = "causal-first"
    share: Annotated[OpenFraction, Field(gt=0.0)] = 0.25
    """Progress of training at which masks begin."""


class ContrastConfig(Section):
    """Masked tokens, and which half of a row belongs to which other half."""

    name: Literal["contrast"] = "contrast"
    weight: PositiveFloat = 1.0
    """Weight of the second part: the mean over all halves of a cross-entropy."""
    temperature: PositiveFloat = 0.05
    """What the cosines of two halves are divided by."""
    rows: Annotated[Size, Field(ge=2)] = 16
    """Each half is told from those of so many rows in turn, its own among them."""


class ElectraConfig(Section):
    """Masked tokens, and which tokens a smaller model, the generator, has replaced."""

    name: Literal["electra"] = "electra"
    weight: PositiveFloat = 50.0
    """Weight of the second part: the mean over all tokens of a cross-entropy of two classes."""
    generator: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Width of the generator for each unit of `model.width`."""
    masked: Annotated[OpenFraction, Field(gt=0.0)] = 0.25
    """Share of the chosen tokens that stay masked, for the model itself to predict; the generator
    replaces the others. Without any, the model would learn no token to fill a gap with."""

    def masks(self, chosen: int) -> int:
        """How many of a row's chosen tokens stay masked."""
        return max(1, round(self.masked * chosen))

    def generator_of(self, model: ModelConfig) -> ModelConfig:
        """The generator of a model: as deep, with the same kind of layers and fewer heads.

        A table of embeddings as wide as the model's can be shared by both.
        """
        heads, size = self.generator * model.heads, model.head_dim
        if heads < 1.0:  # narrower than a head
            size = max(8, 8 * round(self.generator * model.width / 8))
        values = {
            "width": size * max(1, round(heads)),
            "head_dim": size,
            "embedding_width": model.embedding_width or model.width,
            "key_heads": None,
            "value_embeddings": False,
            "tied_decoder": True,
        }
        return model.model_copy(update=values)


Objective = Annotated[
    MaskedConfig | ScriptConfig | CausalFirstConfig | ContrastConfig | ElectraConfig,
    Field(discriminator="name"),
]
