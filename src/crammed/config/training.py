"""Pretraining: the budget, masks, batches, the order of rows, the loop, the device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from crammed.budget import Account, Budget
from crammed.config.base import PositiveFloat, PositiveInt, Section
from crammed.config.corpus import Ordering
from crammed.errors import InputError
from crammed.schedule import Fraction


class BudgetConfig(Section):
    """What the run may spend, and which accounts of time count."""

    limit: str = "24h"
    charge: Annotated[tuple[Account, ...], Field(strict=False, min_length=1)] = (
        "compile",
        "data_wait",
        "step",
        "checkpoint",
        "log",
        "lost",
    )

    @field_validator("limit")
    @classmethod
    def _parses(cls, limit: str) -> str:
        try:
            Budget.parse(limit)
        except InputError as error:
            raise ValueError(str(error)) from error
        return limit


class MaskingConfig(Section):
    """Which positions are predicted: a fixed number a row, rounded from the rate."""

    rate: PositiveFloat = 0.25
    final_rate: PositiveFloat | None = None
    """Rate at the end of the run, reached in `stages` steps; null keeps `rate`."""
    stages: Annotated[int, Field(ge=2)] = 4
    corruption: Literal["80-10-10", "all-mask"] = "80-10-10"

    @model_validator(mode="after")
    def _rates(self) -> MaskingConfig:
        if max(self.rate, self.final_rate or 0.0) > 0.9:
            raise ValueError("rates above 0.9 leave nothing to predict from")
        return self


class BatchConfig(Section):
    """Rows of one update."""

    rows: PositiveInt = 8192
    ramp: Fraction = 0.6
    """Share of the budget after which `rows` is reached; 0 starts there."""
    quantum: PositiveInt | None = None
    """The ramp starts at and grows by this many rows; null is a 64th of `rows`."""

    @property
    def ramp_quantum(self) -> int:
        """`quantum` resolved: 128 rows at the paper's 8192, and the same shape at any other."""
        return self.quantum or max(1, self.rows // 64)


class OrderConfig(Section):
    """In which order training reads the rows of the corpus."""

    by: Literal["random"] | Ordering = "random"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Follow `by` for this share of the rows; the rest of them comes in random order."""
    reshuffle: bool = True
    """Whether later epochs come in a new random order, or all as the first."""


class EarlyStop(Section):
    """Give up when the training loss is above `loss` once a share `after` is spent."""

    after: PositiveFloat = 0.125
    loss: PositiveFloat = 6.0


class TrainConfig(Section):
    """The training loop."""

    log_seconds: PositiveFloat = 2.0
    checkpoint_seconds: PositiveFloat = 600.0
    heldout_every: PositiveFloat | None = 0.1
    """Measure held-out loss each time this share of the budget is spent; null: at the end only."""
    early_stop: EarlyStop | None = None


class ComputeConfig(Section):
    """Where and how to compute: changes speed, and results by no more than rounding does, once what
    follows from budget and device is resolved."""

    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of activations in pretraining; weights, gradients and optimizer stay float32."""
    fp8: Literal["on", "off"] = "off"
    """Multiply in 8 bits in the layers; NVIDIA GPUs of capability 8.9 and higher."""
    compile: Literal["auto", "on", "off"] = "auto"
    """With torch.compile; `auto` does on GPUs, and on CPUs in runs long enough for it to pay."""
    kernels: Literal["compiler", "triton"] = "compiler"
    """What does norms, gates and the loss: what torch.compile makes, or `crammed.kernels`."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Compute the layers' activations again for the gradients instead of keeping them; `auto`
    where memory is short."""
    microbatch_rows: PositiveInt | None = None
    """Rows of one forward and backward pass; null leaves it to the device."""
    threads: PositiveInt | None = None
    """CPU threads; null leaves it to PyTorch."""
    workers: PositiveInt | None = None
    """Processes that prepare data, or fine-tune on a CPU; null is one a core."""
    engine: Literal["processes", "ray"] = "processes"
    """Prepare with processes of this machine, or on a Ray cluster."""
