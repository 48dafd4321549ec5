"""Pretraining: the budget, masks, batches, the order of rows, the loop, the device."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from crammed.budget import Account, Budget
from crammed.config.base import Later, PositiveFloat, Section, Size
from crammed.config.corpus import Ordering
from crammed.errors import InputError
from crammed.schedule import Fraction, OpenFraction, batch_rows, mask_rate


def _parsed(limit: Any) -> Budget:
    """A budget from its text in a file, or as already parsed from the command line."""
    if isinstance(limit, Budget):
        return limit
    try:
        return Budget.parse(str(limit))
    except InputError as error:
        raise ValueError(str(error)) from error


Workers = Annotated[int, Field(gt=0, le=4096)]


class BudgetConfig(Section):
    """What the run may spend, and which accounts of time count."""

    limit: Annotated[
        Budget, PlainValidator(_parsed), PlainSerializer(lambda budget: budget.text)
    ] = Budget.parse("24h")
    charge: Annotated[tuple[Account, ...], Field(strict=False, min_length=1)] = (
        "compile",
        "data_wait",
        "step",
        "checkpoint",
        "log",
        "lost",
    )
    most_epochs: PositiveFloat | None = None
    """End the run after this many epochs, even if budget remains; null sets no limit."""

    @model_validator(mode="after")
    def _ends(self) -> BudgetConfig:
        if "step" not in self.charge:
            raise ValueError("charge needs `step`: without it, a budget of time never ends")
        return self


class MaskingConfig(Section):
    """Which positions are masked and predicted: the same number in every row, from the rate."""

    rate: PositiveFloat = 0.25
    final_rate: PositiveFloat | None = None
    """Rate at the end of the run, reached in `stages` steps; null keeps `rate`."""
    stages: Annotated[int, Field(ge=2, le=1000)] = 4
    corruption: Literal["80-10-10", "all-mask"] = "80-10-10"
    unit: Annotated[Literal["token", "word", "span", "pmi"], Later()] = "token"
    """What is chosen at random: tokens, words with all of their tokens, runs of several words, or
    words together with those that they often stand beside (`crammed.data.collocations`).
    The last one in a row that is chosen may be cut short, since every row has as many masks."""
    z_loss: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """Weight in the training loss of the squared log of the softmax's normaliser, which keeps
    logits near 0 (Chowdhery et al. 2022). Held-out losses exclude it."""

    @model_validator(mode="after")
    def _rates(self) -> MaskingConfig:
        if max(self.rate, self.final_rate or 0.0) > 0.9:
            raise ValueError("rates above 0.9 leave nothing to predict from")
        return self

    def rate_at(self, u: float) -> float:
        """Share of positions to predict in an update that begins at progress u."""
        if self.final_rate is None:
            return self.rate
        return mask_rate(u, self.rate, self.final_rate, self.stages)

    def rates(self) -> list[float]:
        """All rates of a run."""
        return [self.rate_at((stage + 0.5) / self.stages) for stage in range(self.stages)]


class AdaptiveConfig(Section):
    """How the number of rows follows the gradients: more are needed if the test fails."""

    test: Literal["norm", "inner-product", "cosine", "covariance"] = "norm"
    """What the gradients of an update's pieces must pass (`crammed.training.update.spread`)."""
    threshold: PositiveFloat = 0.9


class BatchConfig(Section):
    """Rows of one update."""

    rows: Size = 8192
    ramp: Fraction = 0.6
    """Progress of training at which `rows` is reached; 0 starts there."""
    quantum: Size | None = None
    """The ramp starts with this many rows and grows by as many; null is a 64th of `rows`."""
    adaptive: Annotated[AdaptiveConfig | None, Later()] = None
    """Begin with twice `quantum`, and let each update have one `quantum` more than the last, up to
    `rows`, or one fewer, as that one's gradients say. Forecasts assume the ramp. Null ramps."""

    @model_validator(mode="after")
    def _whole_pieces(self) -> BatchConfig:
        piece = self.ramp_quantum
        if self.adaptive is not None and (self.rows % piece or self.rows < 2 * piece):
            raise ValueError(
                f"adaptive adds and drops quantum={piece} rows, and rows={self.rows} is not two or "
                "more times as much: set batch.quantum to half of batch.rows, or to less"
            )
        return self

    def rows_after(self, rows: int | None, *, enough: bool) -> int | None:
        """Rows of an update after one of `rows`, whose gradients passed the test if `enough`.

        Args:
            rows: None before the first update.

        Returns:
            None if that is not decided by gradients.
        """
        if self.adaptive is None:
            return None
        piece = self.ramp_quantum
        if rows is None:
            return 2 * piece
        return min(max(rows - piece if enough else rows + piece, 2 * piece), self.rows)

    @property
    def ramp_quantum(self) -> int:
        """`quantum`, or a 64th of `rows`, which is the paper's 128 of 8192."""
        return self.quantum or max(1, self.rows // 64)

    def rows_at(self, u: float) -> int:
        """Rows of an update that begins at progress u."""
        return batch_rows(u, self.rows, self.ramp, self.ramp_quantum)

    def row_counts(self) -> list[int]:
        """All numbers of rows that updates of a run may have."""
        if self.ramp == 0.0:
            return [self.rows]
        return sorted({*range(self.ramp_quantum, self.rows, self.ramp_quantum), self.rows})


class OrderConfig(Section):
    """The order in which training reads the rows of the corpus."""

    by: Literal["random", Ordering] = "random"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Follow `by` for this share of the ordered rows; the rest follow in random order."""
    pool: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Order this share of all rows, drawn at random; the others come after it, in random order."""
    reshuffle: bool = True
    """Whether later epochs come in a new random order, or in that of the first."""


class EarlyStop(Section):
    """Give up if the loss is above `loss` at the progress `after` of training."""

    after: PositiveFloat = 0.125
    loss: PositiveFloat = 6.0


class Divergence(Section):
    """What a run does when its loss is no longer a finite number.

    It is not part of a run's identity, so that a stopped run can resume with another choice.
    """

    then: Literal["stop", "skip", "lower"] = "stop"
    """`stop` ends the run; `skip` returns to the last checkpoint and skips the rows since then;
    `lower` returns to it and multiplies the learning rates by `factor`."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    times: Annotated[int, Field(ge=1, le=100)] = 3
    """End the run if it diverges again after going back this many times."""


class LatestConfig(Section):
    """Which weights count as the latest."""

    count: Annotated[int, Field(ge=2, le=100)] = 10
    """How many copies of the weights are kept and averaged."""
    every: Size = 100
    """Updates from one copy to the next."""


class GradInitConfig(Section):
    """How the scales of the initial weights are learned (GradInit; Zhu et al. 2021)."""

    updates: Size = 100
    """Updates of the scales, before the first one of the weights."""
    rows: Size = 32
    """Rows of each batch; an update of the scales takes two batches."""
    rate: PositiveFloat = 1e-2
    """Learning rate of the scales (tau in the paper)."""
    lr: PositiveFloat = 1e-3
    """Size of the step of the weights after which the loss is to be low (eta)."""
    bound: PositiveFloat = 1000.0
    """Largest sum of the gradient's absolute values (gamma). `lr` times it is how far a step may
    lower the loss, to first order. New models begin at about 90 with 2 layers of width 64, and at
    30,000 with the paper's 16 of 768, which is first brought down."""


class TrainConfig(Section):
    """The extent of attention; how often training logs, saves and measures; when it gives up."""

    attention: Literal["row", "document"] = "row"
    """What a token attends to: its whole row, across documents, or only its own document in it.
    It is not part of the model, and evaluation ignores it."""
    log_seconds: PositiveFloat = 2.0
    checkpoint_seconds: PositiveFloat = 600.0
    """In a budget of time, a quarter of it at most, but a minute if that is more."""
    heldout_every: PositiveFloat | None = 0.1
    """Measure held-out loss after each such share of the budget; null: only at the end."""
    average: Annotated[OpenFraction | None, Later()] = None
    """Decay in each update of a running average of the weights (EMA), which is measured and kept in
    place of the weights themselves; null keeps the weights."""
    latest: Annotated[LatestConfig | None, Later()] = None
    """Average the latest weights instead, all alike (LAWA; Kaddour 2022); null does not."""
    sharpness: Annotated[Annotated[float, Field(gt=0.0, le=100.0)] | None, Later()] = None
    """Take the gradients where the loss is higher: at weights moved by this distance along their
    gradient (SAM; Foret et al. 2021). Each update then takes two passes over its rows; with several
    processes, each moves along the gradient of its own rows. Null takes one pass."""
    layer_drop_rises: Annotated[bool, Later()] = False
    """Let `model.layer_drop` rise from 0 within the first percents of the run, and in proportion to
    depth, so that only the last layer is dropped so often (Zhang and He 2020)."""
    lengthen_at: Annotated[tuple[OpenFraction, ...], Field(strict=False), Later()] = ()
    """Cut rows into shorter ones at first, of half the length for each of these shares of the run
    that is still to come: with ``[0.9, 0.9]``, quarters until 90 % of the run."""
    grow_at: Annotated[tuple[OpenFraction, ...], Field(strict=False), Later()] = ()
    """Progress of training at which the layers in use double, up to `model.layers`, by copies of
    those below. Held-out losses until then are those of the shallower model."""
    drop_tokens: Annotated[OpenFraction, Later()] = 0.0
    """Share of the tokens that the middle layers leave out; none of those that are predicted."""
    learned_passes: Annotated[Size | None, Later()] = None
    """How many of `model.passes`, the last ones, get gradients; null is all of them."""
    grad_init: Annotated[GradInitConfig | None, Later()] = None
    """Learn a scale for each tensor of a new model, before the first update; null does not."""
    early_stop: EarlyStop | None = None
    divergence: Divergence = Divergence()


class ComputeConfig(Section):
    """Where and how to compute. Once the values that depend on budget and device are resolved, it
    affects speed, and results only through rounding."""

    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of activations in pretraining; weights, gradients and optimizer state stay float32."""
    fp8: Literal["on", "off"] = "off"
    """Use 8-bit matrix products in the layers; needs NVIDIA compute capability 8.9 or higher."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Use torch.compile; `auto` does so on GPUs, and on CPUs in runs long enough for it to pay that
    do not train in lanes."""
    kernels: Literal["auto", "compiler"] = "auto"
    """Differs on a CPU alone: there `auto` leaves out what no prediction needs, and has a faster
    loss in float32 updates that are not compiled; `compiler` computes as the first versions did. A
    run that is resumed without this key keeps what it began with."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Recompute activations in the backward pass; `auto` does so where memory is short."""
    microbatch_rows: Size | None = None
    """Rows of one forward and backward pass; null leaves it to the device."""
    threads: Workers | None = None
    """CPU threads; null leaves it to PyTorch."""
    lanes: Workers | None = None
    """Parts of an update that are computed side by side on a CPU, by one thread each; null makes
    as many in small models as there are threads and the update fills, and 1 leaves the threads to
    PyTorch. A run that is resumed with null keeps what it began with."""
    workers: Workers | None = None
    """Processes that prepare data, or fine-tune on a CPU; null is one per core."""
    engine: Literal["processes", "ray"] = "processes"
    """Prepare with processes on this machine, or on a Ray cluster."""

    track: Annotated[Literal["none", "tensorboard", "wandb", "trackio"], Later()] = "none"
    """A service that draws the run's log points and held-out losses while it trains."""
