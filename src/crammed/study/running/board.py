"""The progress line of a study: which runs are training or being judged, and how far they are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crammed.budget import Clock
from crammed.files.writing import last_record
from crammed.quantity import counted
from crammed.study.running.folder import Left
from crammed.study.running.timing import Finished

_TRAINED = 0.5
"""The share of a run with judges that counts as done when it is trained; without judges, all is."""


@dataclass
class Board:
    """The state of all runs.

    Attributes:
        seeds: how many runs each arm has.
        finished: how many of them have finished, by arm; `failed` counts those that failed.
        took: seconds of whole runs, with their judges.
    """

    seeds: int
    clock: Clock
    finished: Counter[str]
    failed: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    _since: dict[Path, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, arms: Iterable[str], seeds: int, todo: Sequence[Left], known: Finished, clock: Clock
    ) -> Board:
        """The state before the first run that is left, of those in `todo`, has been started."""
        left = Counter(run.arm for run in todo)
        board = cls(seeds, clock, Counter({arm: seeds - left[arm] for arm in arms}))
        judging = sum(known.judging.values())
        board.took = [took + (known.rest or 0.0) + judging for took in known.trained.values()]
        return board

    def ended(self, run: Left, *, failed: bool) -> None:
        (self.failed if failed else self.finished)[run.arm] += 1
        if run.before is None and not failed and run.folder in self._since:
            self.took.append(self.clock() - self._since[run.folder])

    def of_arm(self, arm: str) -> str:
        """How many runs of an arm have finished, such as ``2 of 3 runs, 1 failed``."""
        failed = f", {self.failed[arm]} failed" if self.failed[arm] else ""
        return f"{self.finished[arm]} of {counted(self.seeds, 'run')}{failed}"

    def look(self, running: Collection[Left]) -> tuple[float, str, float]:
        """How many runs are done, with fractions for those running; the state in words; and the
        seconds until all have ended, infinity until it is known what a run takes."""
        for run in running:
            self._since.setdefault(run.folder, self.clock())
        states = [(run, *_state(run)) for run in running]
        done = self.finished.total() + self.failed.total() + sum(share for _, share, _ in states)
        failed = [f"{self.failed.total()} failed"] if self.failed else []
        shown = [f"{run.arm} seed {run.seed}: {words}" for run, _, words in states if words]
        words = "; ".join([f"{self.finished.total()} finished", *failed, *shown])
        rest = self.seeds * len(self.finished) - done
        each = statistics.fmean(self.took) if self.took else math.inf
        return done, words, each * rest / max(1, len(states)) if rest else 0.0


def _state(run: Left) -> tuple[float, str]:
    """The share of a run that is done, and what it does; nothing before its first log point."""
    of_training = _TRAINED if run.judges else 1.0
    if run.judges and (run.folder / "summary.json").exists():
        return of_training, "judging"
    if (run.folder / "final").exists():  # which is written when training has ended
        return of_training, "held-out loss and export"
    share = share_done(run.folder)
    return (0.0, "") if share is None else (of_training * share, f"{100 * share:.0f} %")


def share_done(run: Path) -> float | None:
    """The share of its budget that a run had spent at its last log point; None before the first."""
    try:
        u = (last_record(run / "metrics.jsonl") or {}).get("u")
    except OSError:
        return None
    return min(1.0, max(0.0, u)) if isinstance(u, int | float) else None
