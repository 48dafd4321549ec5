"""What is due between two updates, by a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.budget import Ledger
from crammed.training.agenda import Agenda
from support.text import FakeClock, tiny

CONFIG = tiny(
    "crammed",
    "train.log_seconds=10.0",
    "train.checkpoint_seconds=60.0",
    "train.heldout_every=0.25",
)


class Scene:
    """An agenda in training, with a budget of time that ends at `until`."""

    def __init__(self, until: float = 1e9, *, first: bool = True, heldout_u: float = 0.0) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger(("step", "log"), self.clock)
        self.account = self.ledger.account("step")
        self.account.__enter__()
        self.agenda = Agenda(
            CONFIG,
            self.ledger,
            lambda seconds: self.ledger.charged() + seconds <= until,
            first=first,
            heldout_u=heldout_u,
        )

    def log(self, seconds: float) -> None:
        with self.agenda.logging():
            self.clock.now += seconds


def test_the_first_update_of_a_run_is_logged_and_then_one_every_few_seconds() -> None:
    scene = Scene()
    assert scene.agenda.log_due()
    scene.log(2.0)
    assert not scene.agenda.log_due()
    scene.clock.now += 9.9
    assert not scene.agenda.log_due()
    scene.clock.now += 0.1
    assert scene.agenda.log_due()  # the seconds of the log point itself do not count


def test_a_run_that_goes_on_waits_for_its_first_log_point() -> None:
    scene = Scene(first=False)
    assert not scene.agenda.log_due()
    scene.clock.now += 10.0
    assert scene.agenda.log_due()


def test_only_training_counts_towards_a_log_point() -> None:
    scene = Scene(first=False)
    scene.clock.now += 6.0
    for context in (scene.agenda.saving(), scene.agenda.measuring(0.1)):
        with context:
            scene.clock.now += 100.0
    assert not scene.agenda.log_due()
    assert scene.agenda.since_log() == 6.0


def test_all_seconds_count_towards_a_checkpoint() -> None:
    scene = Scene()
    with scene.agenda.measuring(0.1):
        scene.clock.now += 59.0
    assert not scene.agenda.checkpoint_due()
    scene.clock.now += 1.0
    assert scene.agenda.checkpoint_due()
    with scene.agenda.saving():
        scene.clock.now += 100.0
    assert not scene.agenda.checkpoint_due()


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("8m", 120.0), ("3m", 60.0), ("1m", 60.0), ("40m", 600.0), ("24h", 600.0), ("9tok", 600.0)],
)
def test_a_short_budget_of_time_has_checkpoints_too(budget: str, seconds: float) -> None:
    assert tiny("crammed", budget={"limit": budget}).checkpoint_every() == seconds


def test_a_run_that_asks_for_more_checkpoints_has_them() -> None:
    often = tiny("crammed", "train.checkpoint_seconds=5", budget={"limit": "8m"})
    assert often.checkpoint_every() == 5.0


def test_what_cost_too_much_last_time_is_put_off_near_the_end() -> None:
    scene = Scene(until=40.0)
    scene.log(5.0)
    scene.clock.now += 25.0
    assert scene.agenda.log_due()  # 30 seconds are charged, and it may take 10
    scene.clock.now += 0.1
    assert not scene.agenda.log_due()
    late = Scene(until=200.0)
    late.clock.now += 60.0
    assert late.agenda.checkpoint_due()
    with late.agenda.saving():
        late.clock.now += 50.0  # not charged by this rule, but it may happen again
    late.clock.now += 60.0
    assert not late.agenda.checkpoint_due()


@given(st.lists(st.floats(0.0, 1.2), max_size=30))
def test_held_out_loss_is_measured_once_in_every_share_of_the_budget(steps: list[float]) -> None:
    scene = Scene()
    measured = []
    for u in sorted(steps):
        if scene.agenda.heldout_due(u):
            with scene.agenda.measuring(u):
                measured.append(u)
    shares = [int(u / 0.25) for u in measured]
    assert shares == sorted({int(u / 0.25) for u in steps if 0.25 <= u < 1.0})


def test_a_run_that_goes_on_does_not_measure_the_same_share_again() -> None:
    scene = Scene(heldout_u=0.3)
    assert not scene.agenda.heldout_due(0.45)
    assert scene.agenda.heldout_due(0.5)
