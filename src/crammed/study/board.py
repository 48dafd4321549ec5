"""What the progress line of a study says: which runs train, how far they are, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from crammed.budget import Clock, format_seconds
from crammed.files import last_record
from crammed.quantity import counted


@dataclass
class _Seen:
    """When a run was first seen, and how far it was then."""

    at: float
    share: float


@dataclass
class Board:
    """The state of all runs.

    Attributes:
        seeds: how many runs each arm has.
        finished: how many of them are finished, and `failed` how many have failed.
    """

    seeds: int
    clock: Clock
    finished: Counter[str]
    failed: Counter[str] = field(default_factory=Counter)
    _seen: dict[Path, _Seen] = field(default_factory=dict)

    def ended(self, arm: str, *, failed: bool) -> None:
        """Note the end of a run."""
        (self.failed if failed else self.finished)[arm] += 1

    def of_arm(self, arm: str) -> str:
        """Such as ``2 of 3 runs, 1 failed``."""
        failed = f", {self.failed[arm]} failed" if self.failed[arm] else ""
        return f"{self.finished[arm]} of {counted(self.seeds, 'run')}{failed}"

    def look(self, running: Collection[tuple[str, int, Path]]) -> tuple[float, str]:
        """How many runs are done, begun ones in part, and the state of the arms that train.

        Args:
            running: arm, seed and folder of every run that has been handed out and has not ended.
        """
        done = float(self.finished.total() + self.failed.total())
        parts = []
        for arm, seed, folder in running:
            if (share := share_done(folder)) is None:
                continue
            done += share
            parts.append(f"{arm} seed {seed}: {100 * share:.0f} %{self._left(folder, share)}")
        failed = [f"{self.failed.total()} failed"] if self.failed else []
        return done, "; ".join([f"{self.finished.total()} finished", *failed, *parts])

    def _left(self, folder: Path, share: float) -> str:
        """How long a run will take, once it has been seen to move."""
        now = self.clock()
        first = self._seen.setdefault(folder, _Seen(now, share))
        if share <= first.share:
            return ""
        left = (now - first.at) * (1.0 - share) / (share - first.share)
        return f", {format_seconds(round(left))} left"


def share_done(run: Path) -> float | None:
    """The share of its budget that a run had spent at its last log point; None before the first."""
    try:
        u = (last_record(run / "metrics.jsonl") or {}).get("u")
    except OSError:
        return None
    return min(1.0, max(0.0, u)) if isinstance(u, int | float) else None
