"""What is due between two updates: log points, held-out measurements, checkpoints.

The training loop and the forecast both use the agenda, the forecast with a simulated clock, so both
follow the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from crammed.budget import Account, Ledger
from crammed.config import RunConfig

TRAINING: tuple[Account, ...] = ("data_wait", "step", "log")
"""The accounts whose seconds count as training time, and towards the next log point."""

Due = Literal["log", "heldout", "checkpoint"]


class Agenda:
    """Keeps track of when each thing was last done, and what it cost.

    A log point is due after the first update of a run and then every `log_seconds` of training, a
    checkpoint as often as `checkpoint_every` says, and a held-out measurement at each multiple of
    `heldout_every` that progress passes. Log points and checkpoints are skipped when less than
    twice the time of the last one is left.

    Args:
        room_for: whether the budget has this many seconds left.
        first: whether this is the start of the run, so that its first update is logged.
        heldout_u: progress at the last held-out measurement of an earlier process.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        room_for: Callable[[float], bool],
        *,
        first: bool = True,
        heldout_u: float = 0.0,
    ) -> None:
        self._train = config.train
        self._save_after = config.checkpoint_every()
        self._ledger = ledger
        self._room_for = room_for
        self._log_after = 0.0 if first else config.train.log_seconds
        self._logged = self._training_seconds()
        self._saved = ledger.wall()
        self._log_cost = self._checkpoint_cost = 0.0
        self.heldout_u = heldout_u

    def due(self, u: float) -> Iterator[Due]:
        """What is due at progress u, in the order to do it.

        Whether the next thing is due may depend on how long the one before took, so do each before
        taking the next.
        """
        if self.log_due():
            yield "log"
        if self.heldout_due(u):
            yield "heldout"
        if self.checkpoint_due():
            yield "checkpoint"

    def log_due(self) -> bool:
        return self.since_log() >= self._log_after and self._room_for(2 * self._log_cost)

    def heldout_due(self, u: float) -> bool:
        every = self._train.heldout_every
        if every is None or u >= 1.0:
            return False
        return math.floor(u / every) > math.floor(self.heldout_u / every)

    def checkpoint_due(self) -> bool:
        waited = self._ledger.wall() - self._saved
        return waited >= self._save_after and self._room_for(2 * self._checkpoint_cost)

    def booked(self, what: Due, u: float) -> AbstractContextManager[None]:
        if what == "log":
            return self.logging()
        return self.measuring(u) if what == "heldout" else self.saving()

    @contextmanager
    def logging(self) -> Iterator[None]:
        before = self._ledger.charged()
        with self._ledger.account("log"):
            yield
        self._log_cost = self._ledger.charged() - before
        self._logged, self._log_after = self._training_seconds(), self._train.log_seconds

    @contextmanager
    def measuring(self, u: float) -> Iterator[None]:
        with self._ledger.account("evaluate"):
            yield
        self.heldout_u = u

    @contextmanager
    def saving(self) -> Iterator[None]:
        before = self._ledger.wall()
        with self._ledger.account("checkpoint"):
            yield
        self._saved = self._ledger.wall()
        self._checkpoint_cost = self._saved - before

    def went_back(self, heldout_u: float) -> None:
        """Restart after the run went back to a checkpoint with this `heldout_u`."""
        self._logged, self._saved = self._training_seconds(), self._ledger.wall()
        self.heldout_u = heldout_u

    def since_log(self) -> float:
        """Seconds of training since the last log point."""
        return self._training_seconds() - self._logged

    def _training_seconds(self) -> float:
        seconds = self._ledger.state()
        return sum(seconds[name] for name in TRAINING)
