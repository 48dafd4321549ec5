"""Schedules: pure functions of the progress u of training in [0, 1].

Each learning-rate shape is a frozen model with its own parameters; calling it with u gives a factor
of the peak value. Curves keep their end value beyond u = 1 and are never negative. Formulas:
Geiping and Goldstein 2022, section 4.3, with the warm-up and cool-down of the public code, restated
as fractions of training.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]

C = TypeVar("C", bound="Curve")


class Curve(BaseModel):
    """Base class of the shapes. Subclasses define `body`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def __call__(self, u: float) -> float:
        """The factor at progress u; any real number is allowed."""
        # Rounding may make a value that should be 0 slightly negative.
        return max(0.0, self.value(min(1.0, max(0.0, u))))

    def value(self, u: float) -> float:
        """The factor at u in [0, 1], including warm-up and cool-down."""
        return self.body(u)

    def body(self, u: float) -> float:
        """The factor at u in [0, 1], without warm-up or cool-down."""
        raise NotImplementedError


class _WarmedUp(Curve):
    """Linear warm-up from 0 over the first share of training."""

    warmup: OpenFraction = 0.0

    def value(self, u: float) -> float:
        return u / self.warmup if u < self.warmup else super().value(u)

    def after(self, u: float) -> float:
        """Progress since the end of the warm-up, 0 to 1."""
        return (u - self.warmup) / (1.0 - self.warmup)


class _CooledDown(Curve):
    """Linear descent to zero over the last share of training."""

    cooldown: OpenFraction = 0.0

    def value(self, u: float) -> float:
        begins = 1.0 - self.cooldown
        if self.cooldown and u > begins:
            return (1.0 - u) / self.cooldown * self.body(begins)
        return super().value(u)

    @model_validator(mode="after")
    def _phases_fit(self: C) -> C:
        if getattr(self, "warmup", 0.0) + getattr(self, "cooldown", 0.0) > 1.0:
            raise ValueError("warmup + cooldown is more than the whole of training")
        return self


def _half_cosine(progress: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


class Triangle(Curve):
    """Linear from `start` up to 1, then linear to 0 over the last `falling` share.

    With start 0.25 and falling 0.25, this is the paper's final schedule ("triangle2").
    """

    shape: Literal["triangle"] = "triangle"
    start: Fraction = 0.25
    falling: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25

    def body(self, u: float) -> float:
        rising = self.start + u * (1.0 - self.start) / (1.0 - self.falling)
        return min(rising, (1.0 - u) / self.falling)


class OneCycle(Curve):
    """Linear up to 1 at half of training, then linear to 0: `MultiCycle` with one cycle."""

    shape: Literal["one-cycle"] = "one-cycle"

    def body(self, u: float) -> float:
        return 2.0 * min(u, 1.0 - u)


class MultiCycle(Curve):
    """`cycles` triangles from 0 to 1 and back."""

    shape: Literal["multi-cycle"] = "multi-cycle"
    cycles: Annotated[int, Field(ge=1, le=2**20)] = 8

    def body(self, u: float) -> float:
        within = (u * self.cycles) % 1.0
        return 2.0 * min(within, 1.0 - within)


class LinearDecay(_WarmedUp):
    """Warm-up, then linear from 1 to `end`."""

    shape: Literal["linear"] = "linear"
    end: Fraction = 0.0

    def body(self, u: float) -> float:
        return 1.0 + (self.end - 1.0) * self.after(u)


class LinearToZero(_WarmedUp):
    """`LinearDecay` that ends at exactly 0 ("D2Z", arXiv 2502.15938)."""

    shape: Literal["linear-to-zero"] = "linear-to-zero"

    def body(self, u: float) -> float:
        return 1.0 - self.after(u)


class Polynomial(_WarmedUp):
    """Warm-up, then (1 - progress) ** power."""

    shape: Literal["polynomial"] = "polynomial"
    power: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0

    def body(self, u: float) -> float:
        return math.pow(1.0 - self.after(u), self.power)


class Cosine(_WarmedUp):
    """Warm-up, then half a cosine from 1 to 0."""

    shape: Literal["cosine"] = "cosine"

    def body(self, u: float) -> float:
        return _half_cosine(self.after(u))


class CosineAnnealing(_WarmedUp):
    """Warm-up, then `cycles` half cosines, each restarting at 1; the last one ends at 0."""

    shape: Literal["cosine-annealing"] = "cosine-annealing"
    cycles: Annotated[int, Field(ge=1, le=2**20)] = 4

    def body(self, u: float) -> float:
        return _half_cosine(1.0 if u == 1.0 else (self.after(u) * self.cycles) % 1.0)


class InverseCosine(_CooledDown):
    """Half a cosine up from 0 to 1, with a linear cool-down."""

    shape: Literal["inverse-cosine"] = "inverse-cosine"

    def body(self, u: float) -> float:
        return _half_cosine(1.0 - u)


class Ramp(_CooledDown):
    """Linear rise over the whole of training, with a linear cool-down."""

    shape: Literal["ramp"] = "ramp"

    def body(self, u: float) -> float:
        return u


class InverseSqrt(_WarmedUp, _CooledDown):
    """Warm-up (required), then 1 / sqrt(u), scaled to 1 at the end of the warm-up; cool-down."""

    shape: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.06

    def body(self, u: float) -> float:
        return math.sqrt(self.warmup / u)


class Constant(_WarmedUp, _CooledDown):
    """Warm-up, constant, cool-down."""

    shape: Literal["constant"] = "constant"

    def body(self, u: float) -> float:
        return 1.0


class Dive(_WarmedUp):
    """Warm-up, constant, then linear to 0 over the last `falling` share (trapezoid, WSD)."""

    shape: Literal["dive"] = "dive"
    falling: PositiveFraction = 0.5

    def body(self, u: float) -> float:
        return min(1.0, (1.0 - u) / self.falling)


class DiveSlow(Dive):
    """`Dive` that decays over the last three quarters."""

    shape: Literal["dive-slow"] = "dive-slow"  # type: ignore[assignment]
    falling: PositiveFraction = 0.75


class DiveFast(Dive):
    """`Dive` that decays over the last quarter."""

    shape: Literal["dive-fast"] = "dive-fast"  # type: ignore[assignment]
    falling: PositiveFraction = 0.25


Schedule = Annotated[
    Triangle
    | OneCycle
    | MultiCycle
    | LinearDecay
    | LinearToZero
    | Polynomial
    | Cosine
    | CosineAnnealing
    | InverseCosine
    | Ramp
    | InverseSqrt
    | Constant
    | Dive
    | DiveSlow
    | DiveFast,
    Field(discriminator="shape"),
]


def batch_rows(u: float, rows: int, ramp: float, quantum: int) -> int:
    """Rows of one update: grows from one quantum to `rows` at u = `ramp`, in whole quanta.

    This is the linear ramp of Geiping and Goldstein 2022, section 4.3, with a constant of the
    recipe in place of the device's microbatch. With `ramp` 0 it is `rows` from the start.
    """
    if ramp == 0.0:
        return rows
    steps = math.floor(max(0.0, u) * rows / (ramp * quantum)) + 1
    return min(steps * quantum, rows)


def mask_rate(u: float, start: float, end: float, stages: int) -> float:
    """Share of positions to predict, in `stages` equal steps from `start` to `end`.

    It changes in steps because each distinct number of masked positions is another static shape to
    compile. With one stage the rate is `start` throughout.
    """
    if stages == 1:
        return start
    stage = min(stages - 1, int(max(0.0, u) * stages))
    return start + (end - start) * stage / (stages - 1)
