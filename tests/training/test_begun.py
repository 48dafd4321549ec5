"""Schedules begin with training, whatever the budget paid for before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.budget import Budget, Ledger, Limits, Work
from crammed.errors import InputError
from crammed.model.cooccurrence import factorisation_flops
from crammed.training.plan import Detour, Planner, refuse_too_little
from support.text import FakeClock, tiny

SECONDS, AN_UPDATE = 100.0, 0.5


def rates(compiling: float, resumed_at: int | None = None) -> list[float]:
    """The schedule's factor in each update of a run that compiled for so many seconds first.

    Args:
        resumed_at: number of updates after which another planner goes on.
    """
    values = ("schedule.warmup=0.1", "schedule.falling=0.5")
    clock = FakeClock()
    ledger = Ledger(("step", "compile"), clock)
    config = tiny("crammed", *values, budget={"limit": f"{SECONDS:g}s"})
    planner, work, found = Planner(config, 256, None, ledger), Work(), []
    with ledger.account("compile"):
        clock.now += compiling
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            clock.now += AN_UPDATE
            work += update.cost
            planner.deadline.end(update.rows)
            found.append(update.factor)
            if work.updates == resumed_at:
                begun, planner = planner.begun, Planner(config, 256, None, ledger)
                planner.go_on(Detour(), None, begun)
                planner.deadline.charged = ledger.charged()
    return found


@pytest.mark.parametrize("compiling", [0.0, 5.0, 30.0, 90.0])
def test_training_warms_up_and_ends_after_any_wait(compiling: float) -> None:
    found = rates(compiling)
    assert len(found) == pytest.approx((SECONDS - compiling) / AN_UPDATE, abs=2)
    warm = len(found) // 10
    assert found[0] <= 1.5 / warm
    assert found[: warm - 1] == sorted(found[: warm - 1])
    assert max(found) == pytest.approx(1.0, abs=0.5 / warm)
    assert found[-1] < 4.0 / len(found)


def test_a_resumed_run_keeps_its_beginning() -> None:
    assert rates(30.0, resumed_at=20) == pytest.approx(rates(30.0), abs=0.02)


@given(
    begun=st.floats(0.0, 0.99),
    shares=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9).map(sorted),
    read=st.floats(0.0, 0.5),
)
def test_progress_of_training_rises_from_0_to_1(
    begun: float, shares: list[float], read: float
) -> None:
    limits = Limits(Budget.parse("100s"), most_tokens=1000.0)
    at = [limits.trained(Work(), SECONDS * (begun + s * (1.0 - begun)), begun) for s in shares]
    assert at == sorted(at)
    assert at == pytest.approx(shares, abs=1e-9)
    assert limits.trained(Work(), SECONDS, begun) == 1.0
    some = Work(tokens=round(1000.0 * read))
    assert limits.trained(some, 0.0, 0.0) == limits.progress(some, 0.0)


def test_a_budget_spent_before_training_leaves_no_update() -> None:
    assert rates(SECONDS) == []


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_flops_spent_before_training_leave_no_update(share: float) -> None:
    before = factorisation_flops(256, tiny("crammed").model.width)
    config = tiny("crammed", budget={"limit": f"{share * before}flop"})
    with pytest.raises(InputError, match="ends before"):
        refuse_too_little(config, 256)
