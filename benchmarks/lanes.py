"""Runs processes side by side, each lane on CPU cores of its own."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from common import numbers_of
from crammed.errors import CrammedError, InputError, Interrupted

Item = TypeVar("Item")
Result = TypeVar("Result")


def core_numbers(text: str) -> list[int]:
    return numbers_of("--cores", text, least=0)


def separate(lanes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sort the cores of each lane, which must exist, belong to no other, and be equally many."""
    wanted = [available(lane) for lane in lanes]
    if len(set().union(*wanted)) < sum(map(len, wanted)):
        raise InputError("--cores: lanes may not share a core")
    if len({len(lane) for lane in wanted}) > 1:
        raise InputError("--cores: every lane must have as many cores as the others")
    return wanted


def available(cores: Sequence[int]) -> list[int]:
    """Sort these cores, which must exist."""
    wanted, here = sorted(set(cores)), sorted(os.sched_getaffinity(0))
    if not wanted or not set(wanted) <= set(here):
        raise InputError(f"--cores: choose from {','.join(map(str, here))}")
    return wanted


def pinned(cores: Sequence[int]) -> list[int]:
    """Keep this thread, and everything that it starts, on these cores; returns them."""
    wanted = available(cores)
    os.sched_setaffinity(0, wanted)
    os.environ["OMP_NUM_THREADS"] = str(len(wanted))
    return wanted


def in_lanes(
    lanes: Sequence[Sequence[int]],
    items: Iterable[Item],
    work: Callable[[Item], Result],
    stop: Callable[[], None],
) -> Iterator[Result]:
    """Call `work` for each item, one at a time on the cores of every lane, and yield its results.

    If one fails, `stop` ends the work of all lanes, and the exception is raised again.
    """
    free: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def turn(item: Item) -> Result:
        lane = free.get()
        try:
            pinned(lane)
            return work(item)
        finally:
            free.put(lane)

    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            for each in as_completed([pool.submit(turn, item) for item in items]):
                yield each.result()
        except BaseException as error:
            stop()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("stopped; the same command continues") from error
            raise


class Processes:
    """Processes that several threads start and wait for, and that can all be stopped at once."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = threading.Event()

    def run(self, words: Sequence[str], log: Path, **env: str) -> str:
        """What a command prints that runs on this thread's cores, with its errors in a file."""
        log.parent.mkdir(parents=True, exist_ok=True)
        own, out = {**os.environ, **env}, subprocess.PIPE
        with log.open("a") as errors:
            process = subprocess.Popen(words, stdout=out, stderr=errors, env=own, text=True)
        self._running.add(process)
        if self._stopped.is_set():
            process.kill()
        printed, _ = process.communicate()
        self._running.discard(process)
        if process.returncode:
            said = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
            raise CrammedError(
                f"{log.stem} ended with exit code {process.returncode}: {''.join(said)} (full "
                f"output: {log}); the same command tries again"
            )
        return printed

    def stop(self) -> None:
        """Kill running processes, and any that are started later."""
        self._stopped.set()
        for process in tuple(self._running):
            process.kill()
