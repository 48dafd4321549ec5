"""The progress line of a study: which runs are training, how far they are, how long they need."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crammed.budget import Clock, format_seconds
from crammed.files.writing import last_record
from crammed.quantity import counted

_UNKNOWN = 0.5
"""The assumed share of a run's time that judging takes, until a run has been judged."""


class Running(NamedTuple):
    """A run that has been started and has not ended.

    Attributes:
        is_judged: whether it is judged after training.
        is_trained: whether it was trained before, so that only judging is left.
    """

    arm: str
    seed: int
    folder: Path
    is_judged: bool = False
    is_trained: bool = False


@dataclass
class _Seen:
    """What has been seen of a run.

    Attributes:
        since: when it was first seen.
        moving: the share that was trained when a log point was first seen, and that time.
        judging: when it was first seen being judged.
    """

    since: float
    moving: tuple[float, float] | None = None
    judging: float | None = None


@dataclass
class Board:
    """The state of all runs.

    Attributes:
        seeds: how many runs each arm has.
        finished: how many of them have finished, by arm; `failed` counts those that failed.
    """

    seeds: int
    clock: Clock
    finished: Counter[str]
    failed: Counter[str] = field(default_factory=Counter)
    _seen: dict[Path, _Seen] = field(default_factory=dict)
    _judging: list[float] = field(default_factory=list)
    _shares: list[float] = field(default_factory=list)

    def ended(self, run: Running, *, failed: bool) -> None:
        """Note the end of a run."""
        (self.failed if failed else self.finished)[run.arm] += 1
        seen = self._seen.get(run.folder)
        if failed or seen is None or seen.judging is None:
            return
        now = self.clock()
        self._judging.append(now - seen.judging)  # seconds, and their share of all
        if not run.is_trained and now > seen.since:
            self._shares.append((now - seen.judging) / (now - seen.since))

    def of_arm(self, arm: str) -> str:
        """How many runs of an arm have finished, such as ``2 of 3 runs, 1 failed``."""
        failed = f", {self.failed[arm]} failed" if self.failed[arm] else ""
        return f"{self.finished[arm]} of {counted(self.seeds, 'run')}{failed}"

    def look(self, running: Collection[Running]) -> tuple[float, str]:
        """How many runs are done, with fractions for those running, and the state in words."""
        done = float(self.finished.total() + self.failed.total())
        parts = []
        for run in running:
            seen = self._seen.setdefault(run.folder, _Seen(self.clock()))
            if run.is_judged and (run.folder / "summary.json").exists():
                share, words = self._while_judged(run, seen)
            elif (run.folder / "final").exists():  # which is written when training has ended
                share, words = 1.0 - self._share_of_judging(run), "held-out loss and export"
            elif (trained := share_done(run.folder)) is not None:
                share, words = self._while_trained(run, seen, trained)
            else:
                continue
            done += share
            parts.append(f"{run.arm} seed {run.seed}: {words}")
        failed = [f"{self.failed.total()} failed"] if self.failed else []
        return done, "; ".join([f"{self.finished.total()} finished", *failed, *parts])

    def _while_trained(self, run: Running, seen: _Seen, share: float) -> tuple[float, str]:
        """The share of a run that is done, and words for its training and the time left."""
        now = self.clock()
        of_judging = self._share_of_judging(run)
        done, words = (1.0 - of_judging) * share, f"{100 * share:.0f} %"
        if seen.moving is None:
            seen.moving = share, now
        first, at = seen.moving
        if share <= first:
            return done, words
        left = (now - at) * (1.0 - share) / (share - first)
        if run.is_judged and not self._judging:
            return done, f"{words}, {format_seconds(round(left))} until it is judged"
        left += statistics.median(self._judging) if run.is_judged else 0.0
        return done, f"{words}, {format_seconds(round(left))} left"

    def _while_judged(self, run: Running, seen: _Seen) -> tuple[float, str]:
        """The share of a run that is done while it is being judged, and words for that."""
        if seen.judging is None:
            seen.judging = self.clock()
        took = self.clock() - seen.judging
        expected = statistics.median(self._judging) if self._judging else 0.0
        share = min(1.0, took / expected) if expected else 0.0
        done = 1.0 - self._share_of_judging(run) * (1.0 - share)
        if took >= expected:  # how much longer is unknown
            return done, f"judging, {format_seconds(round(took))} so far"
        return done, f"judging, {format_seconds(round(expected - took))} left"

    def _share_of_judging(self, run: Running) -> float:
        """The share of a run's time in this study that goes to its judges."""
        if not run.is_judged or run.is_trained:
            return float(run.is_judged)
        return statistics.median(self._shares) if self._shares else _UNKNOWN


def share_done(run: Path) -> float | None:
    """The share of its budget that a run had spent at its last log point; None before the first."""
    try:
        u = (last_record(run / "metrics.jsonl") or {}).get("u")
    except OSError:
        return None
    return min(1.0, max(0.0, u)) if isinstance(u, int | float) else None
