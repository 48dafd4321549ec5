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


# Values at u = 0, 1/4, 1/2, 3/4, 1 worked out by hand from the formulas.
TABLE: list[tuple[str, dict[str, Any], tuple[float, ...]]] = [
    ("triangle", {}, (0.25, 0.5, 0.75, 1.0, 0.0)),
    ("triangle", {"start": 0.5}, (0.5, 2 / 3, 5 / 6, 1.0, 0.0)),
    ("one-cycle", {}, (0.0, 0.5, 1.0, 0.5, 0.0)),
    ("multi-cycle", {}, (0.0, 0.0, 0.0, 0.0, 0.0)),
    ("multi-cycle", {"cycles": 2}, (0.0, 1.0, 0.0, 1.0, 0.0)),
    ("linear", {}, (1.0, 0.75, 0.5, 0.25, 0.0)),
    ("linear", {"warmup": 0.5, "end": 0.2}, (0.0, 0.5, 1.0, 0.6, 0.2)),
    ("linear-to-zero", {"warmup": 0.25}, (0.0, 1.0, 2 / 3, 1 / 3, 0.0)),
    ("polynomial", {"power": 2.0}, (1.0, 0.5625, 0.25, 0.0625, 0.0)),
    ("cosine", {}, (1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0.0)),
    ("cosine", {"warmup": 0.5}, (0.0, 0.5, 1.0, 0.5, 0.0)),
    ("cosine-annealing", {}, (1.0, 1.0, 1.0, 1.0, 0.0)),
    ("cosine-annealing", {"cycles": 2}, (1.0, 0.5, 1.0, 0.5, 0.0)),
    ("inverse-cosine", {}, (0.0, 0.5 - math.sqrt(2) / 4, 0.5, 0.5 + math.sqrt(2) / 4, 1.0)),
    ("inverse-cosine", {"cooldown": 0.5}, (0.0, 0.5 - math.sqrt(2) / 4, 0.5, 0.25, 0.0)),
    ("ramp", {}, (0.0, 0.25, 0.5, 0.75, 1.0)),
    ("ramp", {"cooldown": 0.5}, (0.0, 0.25, 0.5, 0.25, 0.0)),
    ("inverse-sqrt", {"warmup": 0.25}, (0.0, 1.0, math.sqrt(0.5), math.sqrt(1 / 3), 0.5)),
    (
        "inverse-sqrt",
        {"warmup": 0.25, "cooldown": 0.5},
        (0.0, 1.0, math.sqrt(0.5), math.sqrt(0.125), 0.0),
    ),
    ("constant", {}, (1.0, 1.0, 1.0, 1.0, 1.0)),
    ("constant", {"warmup": 0.5, "cooldown": 0.5}, (0.0, 0.5, 1.0, 0.5, 0.0)),
    ("dive", {}, (1.0, 1.0, 1.0, 0.5, 0.0)),
    ("dive-slow", {}, (1.0, 1.0, 2 / 3, 1 / 3, 0.0)),
    ("dive-fast", {"warmup": 0.5}, (0.0, 0.5, 1.0, 1.0, 0.0)),
]


@pytest.mark.parametrize(("shape", "parameters", "expected"), TABLE)
def test_values_at_quarters_and_beyond(
    shape: str, parameters: dict[str, Any], expected: tuple[float, ...]
) -> None:
    made = curve(shape, **parameters)
    assert [made(u / 4) for u in range(5)] == pytest.approx(expected)
    assert made(1.05) == pytest.approx(expected[-1])  # holds its end, never negative
    assert made(-0.1) == pytest.approx(expected[0])


def test_the_table_has_every_shape() -> None:
    assert {shape for shape, _, _ in TABLE} == set(SHAPES)


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
    assert curve(shape, **parameters)(u) == max(0.0, FORMULAS[shape](u, **parameters))


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
