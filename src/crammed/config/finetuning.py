"""The configuration of fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from crammed.config.base import Beta, Later, Names, PositiveFloat, Section, Size
from crammed.schedule import OpenFraction

MOST_SEEDS = 1000
NARROW = 256
"""Below this width, models read two texts apart, without dropout, and learn faster, by default; 64
and 128 were measured, and 192 for the rate."""
Power = Annotated[float, Field(gt=0.0, le=10.0)]
Probe = Literal["linear", "knn"]


def dropout_at(width: int | None) -> float:
    """Usual dropout in fine-tuning: 0.1, and none in models narrower than `NARROW`."""
    return 0.0 if width is not None and width < NARROW else 0.1


class Protocol(Section):
    """The hyperparameters of fine-tuning, the same for every task (section 5 of the paper).

    The learning rate warms up and decays within each task's own steps. The model after the last
    epoch is scored.
    """

    seeds: Annotated[int, Field(gt=0, le=MOST_SEEDS)] = 5
    epochs: Size = 5
    batch: Size = 16
    lr: PositiveFloat = 4e-5
    lr_width: Size | None = None
    """The width that `lr` is meant for; narrower models get `lr` (lr_width / width) ** lr_power."""
    lr_power: Annotated[Power | Literal["by-width"], Later()] = 1.0
    """``by-width`` is 1.5; models narrower than `NARROW` get 12.5 `lr` (lr_width / width) ** 0.5
    instead, which is half the rate of pretraining, if `lr` is 4e-5 at width 768. A `lr` that is
    meant for narrow models is not multiplied by 12.5."""
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    clip: PositiveFloat | None = None
    """Maximum L2 norm of the gradient of all parameters; null turns clipping off."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the learning rate after the warm-up; cosine and linear end at zero."""
    warmup: OpenFraction = 0.1
    dropout: OpenFraction | Literal["by-width"] = 0.1
    """Of the encoder and of what is trained with it, whatever a model's own configuration says.
    ``by-width`` is `dropout_at` the model's width."""
    max_length: Annotated[Size, Field(ge=8)] = 128
    """Maximum tokens in a sequence, special ones included, unless a model's own limit is lower."""
    pairs: Annotated[Literal["joint", "apart", "by-width"], Later()] = "joint"
    """How two texts that have a label together are read: ``joint``, as one sequence with the
    model's own classifier, or ``apart``, as a sequence each, with a linear layer that compares
    their means (Conneau et al. 2017) and matches their tokens (Parikh et al. 2016). Each has
    `max_length` then. ``by-width`` is apart in models narrower than `NARROW`."""
    probe: Annotated[Probe | None, Later()] = None
    """Leave the encoder as it is, and predict from its vectors, by a linear model or the nearest
    neighbours. Of the other values, only `max_length` then counts, and `seeds` must be 1."""

    @model_validator(mode="after")
    def _probes_draw_nothing(self) -> Protocol:
        if self.probe is not None and self.seeds != 1:
            raise ValueError("a probe involves no randomness: set seeds to 1")
        return self

    @property
    def apart(self) -> bool:
        """Whether each of two texts is a sequence of its own."""
        return self.pairs == "apart" or self.probe is not None

    def at_width(self, width: int | None) -> Protocol:
        """The protocol for a model of this width; None if the width is unknown."""
        narrower = max(1.0, (self.lr_width or 0) / width) if width is not None else 1.0
        narrow = width is not None and width < NARROW
        if self.lr_power != "by-width":
            factor = narrower**self.lr_power
        elif narrow and (self.lr_width or 0) >= NARROW:
            factor = 12.5 * narrower**0.5
        else:
            factor = narrower**1.5
        own = {"lr": factor * self.lr, "lr_width": None, "lr_power": 1.0}
        if self.pairs == "by-width":
            own["pairs"] = "apart" if narrow else "joint"
        if self.dropout == "by-width":
            own["dropout"] = dropout_at(width)
        return self.model_copy(update=own)

    def hyperparameters(self) -> dict[str, Any]:
        """Everything that affects the score of one seed, after `at_width` has been applied."""
        every = set(Protocol.model_fields) - {"seeds", "lr_width", "lr_power"}
        kept = every if self.probe is None else {"probe", "max_length"}
        return self.model_dump(mode="json", include=kept)

    @staticmethod
    def in_full(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
        """Hyperparameters with what earlier versions lacked, which is left out at its default."""
        return {"pairs": Protocol.model_fields["pairs"].default, **hyperparameters}


class FinetuneConfig(Protocol):
    """The tasks that a trained run is evaluated on, and the protocol."""

    tasks: Names = ()
