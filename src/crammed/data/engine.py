"""Who does the work on shards: this process, processes on this machine, or a Ray cluster.

A stage is a function from a job to a result, applied to jobs in order. Jobs and results travel
between processes; anything large is written to files in a folder that all of them see. The same
bytes come out whoever does the work.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from crammed.config import ComputeConfig
from crammed.errors import CrammedError
from crammed.extras import import_extra
from crammed.workers import cores, worker_processes

_libc = ctypes.CDLL(None) if hasattr(ctypes.CDLL(None), "malloc_trim") else None  # glibc only

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")


class Engine(Protocol):
    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the jobs, which are drawn as workers become free."""
        ...


@contextmanager
def open_engine(compute: ComputeConfig) -> Iterator[Engine]:
    """Start the engine that the configuration names.

    Raises:
        InputError: it is Ray, which is not installed.
        CrammedError: a worker died.
    """
    workers = compute.workers or cores()
    if compute.engine == "ray":
        with _ray_engine() as engine:
            yield engine
    elif workers == 1:
        yield _ThisProcess()
    else:
        with worker_processes(workers, "compute.workers=1") as pool:
            yield _Processes(pool, workers)


class _ThisProcess:
    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        return (_run(function, job) for job in jobs)


class _Processes:
    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self._pool = pool
        self._most_waiting = workers + 1

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        def submit(job: Item) -> Callable[[], Result]:
            return self._pool.submit(_run, function, job).result

        return _in_order(jobs, submit, lambda result: result(), self._most_waiting)


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._most_waiting = 2 * int(ray.cluster_resources().get("CPU", 1))

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        remote = self._ray.remote(function)
        return _in_order(jobs, remote.remote, self._ray.get, self._most_waiting)


def _in_order(
    jobs: Iterable[Item],
    submit: Callable[[Item], Handle],
    wait: Callable[[Handle], Result],
    most_waiting: int,
) -> Iterator[Result]:
    """Submit jobs, only a few at a time: each may hold megabytes of text."""
    waiting: deque[Handle] = deque()
    for job in jobs:
        if len(waiting) >= most_waiting:
            yield wait(waiting.popleft())
        waiting.append(submit(job))
    while waiting:
        yield wait(waiting.popleft())


def _run(function: Callable[[Item], Result], job: Item) -> Result:
    result = function(job)
    release_memory()
    return result


def release_memory() -> None:
    """Return free memory to the system, which the allocators of every process like to keep."""
    pa.default_memory_pool().release_unused()
    if _libc is not None:
        _libc.malloc_trim(0)


@contextmanager
def _ray_engine() -> Iterator[Engine]:
    ray = import_extra("ray", "ray", "compute.engine=ray")
    began_here = not ray.is_initialized()
    if began_here:
        ray.init(
            address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False
        )
    try:
        yield _Ray(ray)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CrammedError):
            raise error.cause from None
        raise
    finally:
        if began_here:
            ray.shutdown()
