"""What a model learns from, each with the options that it reads.

`crammed.training.update.objectives` says what each computes. All but `masked` are outside the rules
of Cramming. Held-out losses are always of masked tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from crammed.config.base import PositiveFloat, Section, Size
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
    """Progress at which masks begin."""


class ContrastConfig(Section):
    """Masked tokens, and which half of a row belongs to which other half."""

    name: Literal["contrast"] = "contrast"
    weight: PositiveFloat = 1.0
    """Weight of the second part: the mean over all halves of a cross-entropy."""
    temperature: PositiveFloat = 0.05
    """What the cosines of two halves are divided by."""
    rows: Annotated[Size, Field(ge=2)] = 16
    """Each half is told from those of so many rows in turn, its own among them."""


Objective = Annotated[
    MaskedConfig | ScriptConfig | CausalFirstConfig | ContrastConfig, Field(discriminator="name")
]
