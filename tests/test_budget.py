from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.budget import ACCOUNTS, Account, Budget, Ledger, Pace, Work, format_seconds
from crammed.config import RunConfig
from crammed.errors import InputError
from support.text import FakeClock


@pytest.mark.parametrize(
    ("text", "kind", "limit"),
    [
        ("24h", "time", 86400.0),
        ("90m", "time", 5400.0),
        ("1.5h", "time", 5400.0),
        ("1h30m", "time", 5400.0),
        ("45s", "time", 45.0),
        ("2d", "time", 172800.0),
        ("2e9tok", "tokens", 2e9),
        ("5 tokens", "tokens", 5.0),
        ("500updates", "updates", 500.0),
        ("1update", "updates", 1.0),
        ("1e18flop", "flops", 1e18),
    ],
)
def test_parse(text: str, kind: str, limit: float) -> None:
    assert Budget.parse(text) == Budget(kind, limit, text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("90m", "1h 30m"),
        ("60s", "1m"),
        ("1updates", "1 update"),
        ("2e9tok", "2 G tokens"),
        ("20000tok", "20,000 tokens"),
        ("500updates", "500 updates"),
        ("3e12flop", "3 TFLOP"),
        ("2.5e15flop", "2.5 PFLOP"),
        ("2e18flop", "2 exaFLOP"),
    ],
)
def test_a_budget_is_said_in_units_that_suit_it(text: str, said: str) -> None:
    assert str(Budget.parse(text)) == said


@pytest.mark.parametrize(
    "text",
    [
        "1e300tok",
        "1e31flop",
        "",
        "0h",
        "-5m",
        "90",
        "h",
        "nan h",
        "1e999h",
        "2.5updates",
        "1x",
        "\uff11h",
        "1e\uff13tok",
    ],
)
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"budget.*(24h|whole number)"):
        Budget.parse(text)


@pytest.mark.parametrize("text", ["60m", " 1h", "1.50h", "2.0e3 updates", "7e2tok"])
def test_a_budget_is_saved_as_it_was_typed(text: str) -> None:
    config = RunConfig.model_validate({"recipe": "any", "budget": {"limit": text}})
    assert config.budget.limit == Budget.parse(text)
    assert config.model_dump(mode="json")["budget"]["limit"] == text
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    parsed = {"recipe": "any", "budget": {"limit": Budget.parse(text)}}
    assert RunConfig.model_validate(parsed).identity() == config.identity()


@pytest.mark.parametrize(
    ("kind", "expected"), [("time", 0.3), ("tokens", 0.5), ("updates", 0.02), ("flops", 0.7)]
)
def test_progress_counts_the_budget_s_own_unit(kind: str, expected: float) -> None:
    budget = Budget(kind, 100.0, "100")  # type: ignore[arg-type]
    work = Work(updates=2, rows=1, tokens=50, flops=70.0)
    assert budget.share(work, charged_seconds=30.0) == pytest.approx(expected)


def test_the_innermost_account_pays_and_every_second_is_booked() -> None:
    clock = FakeClock()
    ledger = Ledger(("step", "compile"), clock)
    clock.now += 1  # setup
    with ledger.account("step"):
        clock.now += 10
        with ledger.account("evaluate"):
            clock.now += 100
            with ledger.account("compile"):
                clock.now += 1000
        clock.now += 20
    clock.now += 2  # setup again
    seconds = ledger.state()
    assert seconds["setup"] == 3
    assert seconds["step"] == 30
    assert seconds["evaluate"] == 100
    assert seconds["compile"] == 1000
    assert ledger.charged() == 1030
    assert ledger.wall() == 1133


@given(
    st.lists(st.tuples(st.sampled_from(ACCOUNTS), st.floats(0, 1e4), st.booleans()), max_size=20)
)
def test_accounts_add_up_to_the_clock(steps: list[tuple[Account, float, bool]]) -> None:
    clock = FakeClock()
    ledger = Ledger(ACCOUNTS, clock)
    began = clock.now
    for name, seconds, nested in steps:
        with ledger.account(name):
            clock.now += seconds
            if nested:
                with ledger.account("log"):
                    clock.now += 1.0
    assert math.isclose(sum(ledger.state().values()), clock.now - began, abs_tol=1e-6)
    assert math.isclose(ledger.charged(), clock.now - began, abs_tol=1e-6)


def test_an_account_is_left_also_when_its_work_fails() -> None:
    clock = FakeClock()
    ledger = Ledger(("step",), clock)
    with pytest.raises(ValueError, match="x"), ledger.account("checkpoint"):
        raise ValueError("x")
    clock.now += 5
    assert ledger.state()["checkpoint"] == 0
    assert ledger.state()["setup"] == 5


def test_restore_adds_earlier_processes_and_lost_time() -> None:
    clock = FakeClock()
    ledger = Ledger(("step", "lost"), clock)
    ledger.restore({"step": 7.0, "evaluate": 2.0}, lost=3.0)
    assert ledger.charged() == 10.0
    assert ledger.wall() == 12.0


def test_pace_plans_with_the_median_and_knows_the_slowest() -> None:
    pace = Pace()
    assert pace.typical(5) == pace.slowest(5) == 0.0
    for seconds, typical in ((4.0, 12.0), (1.0, 3.0), (1.0, 3.0), (9.0, 3.0), (9.0, 12.0)):
        pace.record(seconds, rows=2)
        assert pace.typical(6) == typical
    assert pace.slowest(6) == 27.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0.4s"),
        (2.0, "2s"),
        (59.7, "1m"),
        (9.97, "10s"),
        (59.4, "59s"),
        (61, "1m 1s"),
        (120, "2m"),
        (3600, "1h"),
        (93784, "26h 3m"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
