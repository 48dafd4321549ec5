"""Fine-tuning on tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from crammed.config.base import Beta, Names, PositiveFloat, PositiveInt, Section
from crammed.schedule import OpenFraction


class Protocol(Section):
    """How fine-tuning goes: one set of hyperparameters for every task (section 5).

    The learning rate warms up and decays within each task's own steps; the last epoch counts.
    """

    seeds: PositiveInt = 5
    epochs: PositiveInt = 5
    batch: PositiveInt = 16
    lr: PositiveFloat = 4e-5
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    clip: PositiveFloat | None = None
    """Largest L2 norm of the whole gradient; null never clips."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the learning rate after its warm-up; cosine and linear end at zero."""
    warmup: OpenFraction = 0.1
    dropout: OpenFraction = 0.1
    """Of models of ours; Hugging Face models have what their configuration says."""
    max_length: PositiveInt = 128
    """Tokens of a sequence; a model for shorter ones has its own limit."""

    def hyperparameters(self) -> dict[str, Any]:
        """What decides the score of one seed."""
        return self.model_dump(mode="json", include=set(Protocol.model_fields) - {"seeds"})


class FinetuneConfig(Protocol):
    """What a run is evaluated on once it is trained, and by which protocol."""

    tasks: Names = ()
