"""Where a run with a budget of time ends on a machine that pauses, or that becomes slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.budget import Ledger, Work
from crammed.config import RunConfig
from crammed.training.plan import Planner
from crammed.training.update.planned import Update
from support.text import FakeClock, tiny

AN_UPDATE, A_ROW = 0.2, 0.02
"""Seconds that an update takes on a machine that does nothing else."""
SECONDS = 60.0


def usual(rows: int) -> float:
    return AN_UPDATE + A_ROW * rows


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        left: seconds of the budget that were left when it stopped.
        tried: seconds of the update that was not complete in time; 0 if none was begun.
    """

    left: float
    tried: float
    last: Update
    planner: Planner


def play(config: RunConfig, seconds: Callable[[Update, float], float]) -> Ended:
    """The loop of training on a clock of its own.

    Args:
        seconds: how long an update takes that begins so many seconds after the start.
    """
    clock, work, last, tried = FakeClock(), Work(), None, 0.0
    ledger = Ledger(("step",), clock)
    planner = Planner(config, 256, None, ledger)
    with ledger.account("step"):
        while (update := planner.next(work)) is not None:
            clock.now += (took := seconds(update, ledger.charged()))
            if not planner.deadline.met():
                tried = took
                break
            work += update.cost
            planner.deadline.end(update.rows)
            last = update
    assert last is not None
    return Ended(SECONDS - planner.deadline.charged, tried, last, planner)


def config(batch: int, ramp: float = 0.0) -> RunConfig:
    grows = (f"batch.rows={batch}", f"batch.ramp={ramp}", "batch.quantum=4")
    return tiny("crammed", *grows, budget={"limit": f"{SECONDS:g}s"})


@settings(max_examples=30)
@given(
    batch=st.sampled_from([4, 16]),
    ramp=st.sampled_from([0.0, 0.6, 1.0]),
    uneven=st.lists(st.floats(0.9, 1.1), min_size=1, max_size=7),
    pauses=st.lists(st.tuples(st.floats(0.0, 0.97), st.floats(0.1, 3.0)), max_size=7),
)
def test_pauses_do_not_end_a_run(
    batch: int, ramp: float, uneven: list[float], pauses: list[tuple[float, float]]
) -> None:
    """Seven pauses are fewer than half of the updates that the pace is taken from."""
    begins = sorted(pauses)

    def seconds(update: Update, now: float) -> float:
        paused = 0.0
        if begins and update.number > 0 and now >= SECONDS * begins[0][0]:
            paused = begins.pop(0)[1]
            begins[:] = [each for each in begins if each[0] * SECONDS >= now + paused]
        return usual(update.rows) * uneven[update.number % len(uneven)] + paused

    ended = play(config(batch, ramp), seconds)
    # The last update may be paused as well; then it is lost, with the time that it took.
    assert ended.left <= max(ended.tried, 1.5 * usual(batch))


@settings(max_examples=20)
@given(slower=st.floats(1.0, 40.0), place=st.floats(0.0, 0.98))
def test_a_machine_that_stays_slow_ends_within_an_update(slower: float, place: float) -> None:
    def seconds(update: Update, now: float) -> float:
        return usual(update.rows) * (slower if now >= place * SECONDS else 1.0)

    ended = play(config(8), seconds)
    assert ended.left <= slower * usual(8)
    assert ended.tried <= slower * usual(8)
