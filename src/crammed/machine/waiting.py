"""Whether other work holds up this process: how long its threads wait for a core.

Time on the processor does not tell: threads that wait for each other spin, which looks like work.
How long each thread was ready to run while something else had its core is counted by the system.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

BUSY = 0.2
"""A machine is busy if a thread waited for a core for more than this share of the time. Beside one
other busy process that runs all the time it is a third or more; small services take a few percent.
"""
MINUTE = 60.0
TASKS = Path("/proc/self/task")


def core_waits(tasks: Path | None = None) -> dict[str, float]:
    """Seconds for which each thread of this process has waited for a core; empty if unknown."""
    found = {}
    try:
        for each in (tasks or TASKS).iterdir():
            found[each.name] = int((each / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # another system, or a thread that has just ended
        return {}
    return found


def is_busy(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> bool:
    """Whether other work held up a thread, by two readings of `core_waits` so many seconds apart.

    Threads that began in between count from nothing.
    """
    return _longest(before, after) > BUSY * seconds


def _longest(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    return max((after[each] - before.get(each, 0.0) for each in after), default=0.0)


class Neighbours:
    """Notices other work that holds up a long job for a minute or more."""

    def __init__(self) -> None:
        self._since, self._waits = time.monotonic(), core_waits()

    def share(self) -> float | None:
        """The share of the time since the last answer in which a thread waited for a core.

        Returns:
            None if that is less than a minute, or not busy (`BUSY`).
        """
        seconds = time.monotonic() - self._since
        if seconds < MINUTE:
            return None
        waits = core_waits()
        share = _longest(self._waits, waits) / seconds
        self._since, self._waits = time.monotonic(), waits
        return share if share > BUSY else None
