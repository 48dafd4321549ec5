from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from crammed.schedule import Curve, Schedule, batch_rows, mask_rate

SCHEDULE: TypeAdapter[Any] = TypeAdapter(Schedule)
SHAPES = [curve.model_fields["shape"].default for curve in get_args(get_args(Schedule)[0])]


def curve(shape: str, **parameters: Any) -> Curve:
    made = SCHEDULE.validate_python({"shape": shape, **parameters})
    assert isinstance(made, Curve)
    return made


def warmed(u: float, warmup: float, formula: Callable[[float], float]) -> float:
    """Warm-up, then the formula over progress through the rest."""
    return u / warmup if u < warmup else formula((u - warmup) / (1.0 - warmup))


def cooled(u: float, cooldown: float, formula: Callable[[float], float]) -> float:
    """The formula over u, then from its last value linearly to 0."""
    if cooldown and u > 1.0 - cooldown:
        return (1.0 - u) / cooldown * formula(1.0 - cooldown)
    return formula(u)


def half_cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def dive(u: float, warmup: float, falling: float) -> float:
    return u / warmup if u < warmup else min(1.0, (1.0 - u) / falling)


# Each shape written out on its own: the reference for code that the shapes share.
FORMULAS: dict[str, Callable[..., float]] = {
    "triangle": lambda u, start, falling: min(
        start + u * (1.0 - start) / (1.0 - falling), (1.0 - u) / falling
    ),
    "one-cycle": lambda u: 2.0 * min(u, 1.0 - u),
    "multi-cycle": lambda u, cycles: 2.0 * min((u * cycles) % 1.0, 1.0 - (u * cycles) % 1.0),
    "linear": lambda u, warmup, end: warmed(u, warmup, lambda p: 1.0 + (end - 1.0) * p),
    "linear-to-zero": lambda u, warmup: warmed(u, warmup, lambda p: 1.0 - p),
    "polynomial": lambda u, warmup, power: warmed(u, warmup, lambda p: (1.0 - p) ** power),
    "cosine": lambda u, warmup: warmed(u, warmup, half_cosine),
    "cosine-annealing": lambda u, warmup, cycles: warmed(
        u, warmup, lambda p: half_cosine(1.0 if u == 1.0 else (p * cycles) % 1.0)
    ),
    "inverse-cosine": lambda u, cooldown: cooled(u, cooldown, lambda v: half_cosine(1.0 - v)),
    "ramp": lambda u, cooldown: cooled(u, cooldown, lambda v: v),
    "inverse-sqrt": lambda u, warmup, cooldown: (
        u / warmup if u < warmup else cooled(u, cooldown, lambda v: math.sqrt(warmup / v))
    ),
    "constant": lambda u, warmup, cooldown: (
        u / warmup if u < warmup else cooled(u, cooldown, lambda v: 1.0)
    ),
    "dive": dive,
    "dive-slow": dive,
    "dive-fast": dive,
}

VALUES: dict[str, st.SearchStrategy[float]] = {
    "start": st.floats(0, 1),
    "end": st.floats(0, 1),
    "falling": st.floats(0.01, 0.99),
    "power": st.floats(0.1, 4),
    "cycles": st.integers(1, 9),
    "warmup": st.sampled_from([0.01, 0.06, 0.3]) | st.floats(0.01, 0.5),
    "cooldown": st.just(0.0) | st.floats(0.01, 0.5),
}


@given(st.sampled_from(SHAPES), st.data())
def test_every_shape_is_its_formula_to_the_bit(shape: str, data: st.DataObject) -> None:
    names = [name for name in type(curve(shape)).model_fields if name != "shape"]
    parameters = {name: data.draw(VALUES[name], name) for name in names}
    corners = [0.0, 0.5, 1.0, parameters.get("warmup", 0.0), 1.0 - parameters.get("cooldown", 0.0)]
    u = data.draw(st.floats(0, 1) | st.sampled_from(corners), "u")
    made = curve(shape, **parameters)
    assert made(u) == max(0.0, FORMULAS[shape](u, **parameters))
    assert (made(1.05), made(-0.1)) == (made(1.0), made(0.0))  # it holds its ends


@given(st.sampled_from(SHAPES), st.floats(-2, 3))
def test_every_shape_stays_between_zero_and_one(shape: str, u: float) -> None:
    assert 0.0 <= curve(shape)(u) <= 1.0


@given(
    st.sampled_from(["linear", "cosine", "constant", "inverse-sqrt", "dive", "polynomial"]),
    st.floats(0.05, 0.45),
    st.floats(0, 1),
)
def test_warmed_up_shapes_have_no_jumps(shape: str, warmup: float, u: float) -> None:
    made = curve(shape, warmup=warmup)
    step = 1e-6
    assert abs(made(min(1.0, u + step)) - made(u)) < 1e-3


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("triangle", {"falling": 0.0}),
        ("triangle", {"warmup": 0.1}),
        ("one-cycle", {"start": 0.1}),
        ("inverse-sqrt", {"warmup": 0.0}),
        ("constant", {"warmup": 0.6, "cooldown": 0.6}),
        ("linear", {"warmup": 1.0}),
        ("no-such", {}),
    ],
)
def test_parameters_a_shape_cannot_have_are_refused(shape: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        curve(shape, **parameters)


def test_batch_ramp_of_the_paper() -> None:
    at = [batch_rows(u, 8192, 0.6, 128) for u in (0.0, 0.1, 0.3, 0.6, 1.0, 1.1)]
    assert at == [128, 1408, 4224, 8192, 8192, 8192]


@given(st.floats(0, 1.2), st.integers(1, 9000), st.floats(0.01, 1.0), st.integers(1, 512))
def test_batch_ramp_is_bounded_and_in_quanta(
    u: float, rows: int, ramp: float, quantum: int
) -> None:
    now = batch_rows(u, rows, ramp, quantum)
    assert 1 <= now <= rows
    assert now == rows or now % quantum == 0
    assert now <= batch_rows(u + 0.01, rows, ramp, quantum)
    if u >= ramp:
        assert now == rows


def test_no_ramp_starts_at_the_full_batch() -> None:
    assert batch_rows(0.0, 1000, 0.0, 128) == 1000


def test_mask_rate_steps_from_start_to_end() -> None:
    at = [mask_rate(u, 0.3, 0.15, 4) for u in (0.0, 0.24, 0.25, 0.5, 0.75, 1.0, 1.5)]
    assert at == pytest.approx([0.3, 0.3, 0.25, 0.2, 0.15, 0.15, 0.15])
