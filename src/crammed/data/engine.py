"""Who does the work on shards: this process, processes of this machine, or a Ray cluster.

A stage is a function from a job to a result, applied to jobs in order. Jobs and results travel
between processes; what is large they write to files in a folder that all of them see. So the same
bytes come out whoever did the work.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from crammed.config import ComputeConfig
from crammed.errors import CrammedError, InputError
from crammed.workers import cores, worker_processes

_libc = ctypes.CDLL(None) if hasattr(ctypes.CDLL(None), "malloc_trim") else None  # glibc alone

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the jobs, which are drawn as workers become free."""
        ...


@contextmanager
def open_engine(compute: ComputeConfig) -> Iterator[Engine]:
    """The engine that the configuration asks for.

    Raises:
        InputError: Ray is asked for and not installed.
        CrammedError: a worker died.
    """
    workers = compute.workers or cores()
    if compute.engine == "ray":
        with _ray_engine() as engine:
            yield engine
    elif workers == 1:
        yield _Here()
    else:
        with worker_processes(workers, "compute.workers=1") as pool:
            yield _Processes(pool, workers)


class _Here:
    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        return (_run(function, job) for job in jobs)


def _run(function: Callable[[Item], Result], job: Item) -> Result:
    result = function(job)
    give_memory_back()
    return result


def give_memory_back() -> None:
    """Return what is free to the system; allocators like to keep it, in every process."""
    pa.default_memory_pool().release_unused()
    if _libc is not None:
        _libc.malloc_trim(0)


class _Processes:
    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self._pool = pool
        self._most_waiting = workers + 1

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        for job in jobs:
            # Only a few jobs wait at a time: each may hold megabytes of text.
            if len(waiting) >= self._most_waiting:
                yield waiting.popleft().result()
            waiting.append(self._pool.submit(_run, function, job))
        while waiting:
            yield waiting.popleft().result()


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._most_waiting = 2 * int(ray.cluster_resources().get("CPU", 1))

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        remote = self._ray.remote(function)
        waiting: deque[Any] = deque()
        for job in jobs:
            if len(waiting) >= self._most_waiting:
                yield self._ray.get(waiting.popleft())
            waiting.append(remote.remote(job))
        while waiting:
            yield self._ray.get(waiting.popleft())


@contextmanager
def _ray_engine() -> Iterator[Engine]:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "compute.engine=ray needs Ray: pip install 'crammed[ray]', or leave it at processes"
        ) from error
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
