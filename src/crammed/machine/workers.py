"""Worker processes on this machine, which end when the process that started them does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from crammed.errors import CrammedError, InputError
from crammed.safepath import SAFE

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """CPU cores that this process may use, given affinity, container and OMP_NUM_THREADS."""
    here = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    limits = [float(len(here)), *(limit for group in _groups("cpu") for limit in _quota(group))]
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if asked.isdecimal() and int(asked):
        limits.append(int(asked))
    return max(1, int(min(limits)))


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process and of the groups around them."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return  # another system
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = _GROUPS / controller if controllers else _GROUPS  # version 1, version 2
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):  # in a container the path may be the host's
            if folder.is_relative_to(top):
                yield folder


def _quota(group: Path) -> Iterator[float]:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group / name).read_text().strip() for name in names)
    except (OSError, ValueError):
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)


def world_size() -> int:
    """Number of processes that ``torchrun`` started to train one model; 1 without it.

    Raises:
        InputError: the variables that ``torchrun`` sets are incomplete, or are not numbers.
    """
    size = _from_torchrun("WORLD_SIZE", "1", least=1)
    if size > 1:
        if missing := [name for name in _OF_A_PROCESS if not os.environ.get(name)]:
            raise _half_told(f"without {', '.join(missing)}")
        for name in ("RANK", "LOCAL_RANK"):
            if (number := _from_torchrun(name)) >= size:
                raise _half_told(f"and {name} is {number}")
        _from_torchrun("MASTER_PORT", least=1)
    return size


def is_leader() -> bool:
    """Whether this process is the first, or only, one that trains a model."""
    return world_size() == 1 or _from_torchrun("RANK") == 0


_OF_A_PROCESS = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` tells each of several processes."""


def _from_torchrun(name: str, otherwise: str = "", least: int = 0) -> int:
    """A number that ``torchrun`` passes in an environment variable; an empty one counts as none."""
    text = os.environ.get(name, "").strip() or otherwise
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise InputError(
            f"the environment variable {name} is {text!r}, not a valid number: start several "
            "processes with torchrun, or unset WORLD_SIZE to train with one"
        )
    return int(text)


def _half_told(what: str) -> InputError:
    size = os.environ["WORLD_SIZE"].strip()
    return InputError(
        f"the environment variable WORLD_SIZE is {size}, {what}: start several processes with "
        "torchrun, or unset WORLD_SIZE to train with one"
    )


def available_memory() -> int | None:
    """Bytes of memory that machine and container leave for new processes; None if unknown."""
    limits = [left for group in _groups("memory") for left in _left(group)]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable"))
        limits.append(1024 * int(free.split()[1]))
    except (OSError, StopIteration, ValueError):
        pass  # another system
    return min(limits, default=None)


def _left(group: Path) -> Iterator[int]:
    """Bytes that a control group of version 2 leaves, if it limits memory.

    Files that it keeps in memory only until something else needs it do not count as taken.
    """
    try:
        most, taken = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
        yield most - taken + int(dict(line.split() for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return  # the limit is "max", or it is the root, or a group of version 1


@contextmanager
def protected_children() -> Iterator[None]:
    """A context that starts every Python process without the working directory in its imports.

    The environment is that of the program which uses this package, so it is restored afterwards: a
    script which that program starts may need its own folder.
    """
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before


class _Worker(SpawnProcess):
    """A process that does not import the program which starts it.

    That may be a plain script, which would train again in each of them.
    """

    def start(self) -> None:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = program


class _Spawning(SpawnContext):
    Process = _Worker


@contextmanager
def worker_processes(
    workers: int,
    otherwise: str,
    initializer: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, one core each.

    Args:
        otherwise: setting to suggest if a worker dies, such as ``compute.workers=1``.
        initializer: function that each worker calls with `arguments` before its first job.

    Raises:
        InputError: this process may not start others.
        CrammedError: a worker died.
    """
    if multiprocessing.current_process().daemon:
        raise InputError(
            "a daemonic process, as in a multiprocessing.Pool, cannot start worker processes: "
            f"set {otherwise}, or use concurrent.futures.ProcessPoolExecutor"
        )
    # Spawned, not forked: threads of pyarrow and PyTorch do not survive a fork.
    context = _Spawning()
    with protected_children():  # one process begins with the pool, the others with their first jobs
        pool = ProcessPoolExecutor(workers, context, _begin_worker, (initializer, arguments))
    try:
        with protected_children():
            yield pool
    except BrokenProcessPool as error:
        raise CrammedError(
            "a worker process died, perhaps because memory ran out: repeat the command to resume, "
            f"with {otherwise} if it happens again"
        ) from error
    except BaseException:
        # A worker's current job may take hours; what is finished is already on the disk.
        for process in multiprocessing.active_children():
            if isinstance(process, _Worker):  # not one of the program that imports this package
                process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker(initializer: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """Give the worker one core, leave the terminal to the driver, and end when the driver does."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for each in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these to all of them
        signal.signal(each, signal.SIG_IGN)
    driver = multiprocessing.parent_process()
    assert driver is not None

    def watch() -> None:
        driver.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if initializer is not None:
        initializer(*arguments)
