"""Curves: pure functions of progress u in [0, 1].

Each learning-rate shape is a frozen model that holds only the parameters it has, and is called
with u to give a factor of the peak value. Every curve holds its end value beyond u = 1 and none
is ever negative. Formulas: Geiping and Goldstein 2022, section 4.3, with the public code's
warm-up and cool-down, restated as fractions of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]

C = TypeVar("C", bound="Curve")


def _on_unit_interval(method: Callable[[Any, float], float]) -> Callable[[Any, float], float]:
    """Clamp u to [0, 1] before the call and the value to >= 0 after it (rounding)."""

    @wraps(method)
    def clamped(self: Any, u: float) -> float:
        return max(0.0, method(self, min(1.0, max(0.0, u))))

    return clamped


class Curve(BaseModel):
    """Base of the shapes. A subclass defines ``value(u)`` for u in [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    def value(self, u: float) -> float:
        raise NotImplementedError

    @_on_unit_interval
    def __call__(self, u: float) -> float:
        """The factor at progress u, for any real u."""
        return self.value(u)


class _WarmedUp(Curve):
    """Linear warm-up over the first share of the budget."""

    warmup: OpenFraction = 0.0

    def warmed(self, u: float) -> float | None:
        """The value during warm-up, or None once it is over."""
        return u / self.warmup if u < self.warmup else None

    def after(self, u: float) -> float:
        """Progress through what follows the warm-up, 0 to 1."""
        return (u - self.warmup) / (1.0 - self.warmup)


class _CooledDown(Curve):
    """Linear descent to zero over the last share of the budget."""

    cooldown: OpenFraction = 0.0

    def cooled(self, u: float) -> float | None:
        """Factor of the value at the start of the cool-down, or None before it."""
        return (1.0 - u) / self.cooldown if self.cooldown and u > 1.0 - self.cooldown else None

    @model_validator(mode="after")
    def _phases_fit(self: C) -> C:
        if getattr(self, "warmup", 0.0) + getattr(self, "cooldown", 0.0) > 1.0:
            raise ValueError("warmup + cooldown is more than the whole budget")
        return self


class Triangle(Curve):
    """From `start` linearly up to 1, then linearly to 0 over the last `falling` share.

    With start 0.25 and falling 0.25 this is the final schedule of the paper ("triangle2").
    """

    shape: Literal["triangle"] = "triangle"
    start: Fraction = 0.25
    falling: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.25

    def value(self, u: float) -> float:
        rising = self.start + u * (1.0 - self.start) / (1.0 - self.falling)
        return min(rising, (1.0 - u) / self.falling)


class OneCycle(Curve):
    """Linearly up to 1 at half of the budget, linearly down to 0 at its end."""

    shape: Literal["one-cycle"] = "one-cycle"

    def value(self, u: float) -> float:
        return 2.0 * min(u, 1.0 - u)


class MultiCycle(Curve):
    """`cycles` triangles from 0 to 1 and back."""

    shape: Literal["multi-cycle"] = "multi-cycle"
    cycles: Annotated[int, Field(ge=1)] = 8

    def value(self, u: float) -> float:
        within = (u * self.cycles) % 1.0
        return 2.0 * min(within, 1.0 - within)


class Linear(_WarmedUp):
    """Warm-up, then linearly from 1 to `end`."""

    shape: Literal["linear"] = "linear"
    end: Fraction = 0.0

    def value(self, u: float) -> float:
        if (warm := self.warmed(u)) is not None:
            return warm
        return 1.0 + (self.end - 1.0) * self.after(u)


class LinearToZero(_WarmedUp):
    """Warm-up, then linearly to exactly 0 ("D2Z", arXiv 2502.15938)."""

    shape: Literal["linear-to-zero"] = "linear-to-zero"

    def value(self, u: float) -> float:
        warm = self.warmed(u)
        return 1.0 - self.after(u) if warm is None else warm


class Polynomial(_WarmedUp):
    """Warm-up, then (1 - progress) ** power."""

    shape: Literal["polynomial"] = "polynomial"
    power: Annotated[float, Field(gt=0.0)] = 1.0

    def value(self, u: float) -> float:
        warm = self.warmed(u)
        return (1.0 - self.after(u)) ** self.power if warm is None else warm


class Cosine(_WarmedUp):
    """Warm-up, then half a cosine from 1 to 0."""

    shape: Literal["cosine"] = "cosine"

    def value(self, u: float) -> float:
        warm = self.warmed(u)
        return 0.5 * (1.0 + math.cos(math.pi * self.after(u))) if warm is None else warm


class CosineAnnealing(_WarmedUp):
    """Warm-up, then `cycles` half cosines, each restarting at 1; the last one ends at 0."""

    shape: Literal["cosine-annealing"] = "cosine-annealing"
    cycles: Annotated[int, Field(ge=1)] = 4

    def value(self, u: float) -> float:
        if (warm := self.warmed(u)) is not None:
            return warm
        within = 1.0 if u == 1.0 else (self.after(u) * self.cycles) % 1.0
        return 0.5 * (1.0 + math.cos(math.pi * within))


class InverseCosine(_CooledDown):
    """Half a cosine upwards, from 0 to 1, with a linear cool-down."""

    shape: Literal["inverse-cosine"] = "inverse-cosine"

    def value(self, u: float) -> float:
        if (cooled := self.cooled(u)) is not None:
            return cooled * self.value(1.0 - self.cooldown)
        return 0.5 * (1.0 + math.cos(math.pi * (1.0 - u)))


class Ramp(_CooledDown):
    """Linearly up for the whole budget, with a linear cool-down."""

    shape: Literal["ramp"] = "ramp"

    def value(self, u: float) -> float:
        cooled = self.cooled(u)
        return u if cooled is None else cooled * (1.0 - self.cooldown)


class InverseSqrt(_WarmedUp, _CooledDown):
    """Warm-up (needed), then 1 / sqrt(u), scaled to 1 where the warm-up ends; cool-down."""

    shape: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.06

    def value(self, u: float) -> float:
        if (warm := self.warmed(u)) is not None:
            return warm
        if (cooled := self.cooled(u)) is not None:
            return cooled * math.sqrt(self.warmup / (1.0 - self.cooldown))
        return math.sqrt(self.warmup / u)


class Constant(_WarmedUp, _CooledDown):
    """Warm-up, constant, cool-down."""

    shape: Literal["constant"] = "constant"

    def value(self, u: float) -> float:
        if (warm := self.warmed(u)) is not None:
            return warm
        cooled = self.cooled(u)
        return 1.0 if cooled is None else cooled


class Dive(_WarmedUp):
    """Warm-up, constant, then linearly to 0 over the last `falling` share (trapezoid, WSD)."""

    shape: Literal["dive"] = "dive"
    falling: PositiveFraction = 0.5

    def value(self, u: float) -> float:
        warm = self.warmed(u)
        return min(1.0, (1.0 - u) / self.falling) if warm is None else warm


class DiveSlow(Dive):
    """`Dive` that falls over the last three quarters."""

    shape: Literal["dive-slow"] = "dive-slow"  # type: ignore[assignment]
    falling: PositiveFraction = 0.75


class DiveFast(Dive):
    """`Dive` that falls over the last quarter."""

    shape: Literal["dive-fast"] = "dive-fast"  # type: ignore[assignment]
    falling: PositiveFraction = 0.25


Schedule = Annotated[
    Triangle
    | OneCycle
    | MultiCycle
    | Linear
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
    """Rows of one update: from one quantum up to `rows`, reached at u = `ramp`, in quanta.

    The reference's linear ramp (Geiping and Goldstein 2022, section 4.3) with a constant of the
    recipe where it has the microbatch of the device. `ramp` 0 means `rows` from the start.
    """
    if ramp == 0.0:
        return rows
    steps = math.floor(max(0.0, u) * rows / (ramp * quantum)) + 1
    return min(steps * quantum, rows)


def mask_rate(u: float, start: float, end: float, stages: int) -> float:
    """Share of positions to predict: `stages` equal steps from `start` to `end`.

    Steps rather than a line, because each distinct number of masked positions is a new static
    shape to compile. With one stage the rate is `start` throughout.
    """
    if stages == 1:
        return start
    stage = min(stages - 1, int(max(0.0, u) * stages))
    return start + (end - start) * stage / (stages - 1)
