"""The memory and the disk that work takes, and processes of their own to measure it in; Linux only.

Nothing here or above it may import PyTorch: worker processes import what their main module does.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


class Peak:
    """The largest of some bytes, looked at five times a second."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self.peak = 0
        self._measure = measure
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:  # at least once, however short the work
            over = self._over.wait(0.2)
            self.peak = max(self.peak, self._measure())


def memory() -> Peak:
    """The sum of proportional set sizes of this process and its descendants."""
    return Peak(lambda: sum(map(_set_size, _family())))


def largest() -> int:
    """The largest resident set of this process so far, in bytes.

    The figure of getrusage would include the peak of the process that started this one.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def disk(folder: Path) -> Peak:
    """The sum of the sizes of all files below a folder."""
    return Peak(lambda: written(folder))


def written(folder: Path) -> int:
    """Bytes of all files below a folder that may be changing."""
    return sum(_size(Path(at) / name) for at, _, names in os.walk(folder) for name in names)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is gone
        return 0


def _family() -> list[str]:
    parents: dict[str, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process has ended
            continue
    found = [Path("/proc/self").resolve().name]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def _set_size(process: str) -> int:
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0
    )


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns that is called in a new process, as a command would be."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as process:
        return process.submit(function, *arguments).result()
