"""What does the work on shards: this process, processes on this machine, or a Ray cluster.

A stage is a function from a job to a result, applied to jobs in order. Jobs and results are passed
between processes; anything large is written to files in a folder that all of them can access. The
bytes that come out are the same whichever does the work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa

from crammed.config import ComputeConfig
from crammed.errors import CrammedError, InputError
from crammed.extras import import_extra
from crammed.machine.workers import cores, worker_processes

_libc = ctypes.CDLL(None) if hasattr(ctypes.CDLL(None), "malloc_trim") else None  # glibc only

JOIN_SECONDS = 60.0
"""Seconds to wait for a Ray cluster to answer."""
_RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With "0", Ray listens only on the loopback interface; it reads this when imported."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine:
    """Applies functions to jobs.

    Args:
        submitting: turns a function into one that takes a job and returns a handle for its result.
        wait: returns the result behind a handle.
        most_waiting: how many jobs are submitted before the first result is taken; few, since each
            may hold megabytes of text.
    """

    def __init__(
        self,
        submitting: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
        wait: Callable[[Any], Any],
        most_waiting: int,
    ) -> None:
        self._submitting, self._wait, self._most_waiting = submitting, wait, most_waiting

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the jobs, which are consumed as workers become free."""
        submit = self._submitting(function)
        waiting: deque[Any] = deque()
        for job in jobs:
            waiting.append(submit(job))
            if len(waiting) >= self._most_waiting:
                yield self._wait(waiting.popleft())
        while waiting:
            yield self._wait(waiting.popleft())


@contextmanager
def open_engine(compute: ComputeConfig) -> Iterator[Engine]:
    """Start the engine that the configuration names.

    Raises:
        InputError: it is Ray, which is not installed, or its cluster does not answer.
        CrammedError: a worker died.
    """
    workers = compute.workers or cores()
    if compute.engine == "ray":
        address = os.environ.get("RAY_ADDRESS") or "local"
        alone = "leave compute.engine at processes"
        with ray_cluster(address, "RAY_ADDRESS", "compute.engine=ray", alone, workers) as ray:
            most_waiting = 2 * int(ray.cluster_resources().get("CPU", 1))
            yield Engine(lambda function: ray.remote(function).remote, ray.get, most_waiting)
    elif workers == 1:
        yield Engine(lambda function: lambda job: _run(function, job), lambda done: done, 1)
    else:
        with worker_processes(workers, "compute.workers=1") as pool:
            yield Engine(
                lambda function: lambda job: pool.submit(_run, function, job),
                lambda future: future.result(),
                workers + 2,  # one of them is the result that is being consumed
            )


def _run(function: Callable[[Item], Result], job: Item) -> Result:
    _begin_stage(function)
    return function(job)


@lru_cache(maxsize=1)
def _begin_stage(_: Callable[[Item], Result]) -> None:
    """Release the memory of the stage before; to do so after every job would take time."""
    pa.set_memory_pool(pa.system_memory_pool())  # so that Arrow and NumPy use the same free memory
    release_memory()


def release_memory() -> None:
    """Return free memory, which allocators tend to keep, to the system."""
    pa.default_memory_pool().release_unused()
    if _libc is not None:
        _libc.malloc_trim(0)


@contextmanager
def ray_cluster(
    address: str, option: str, user: str, otherwise: str, workers: int
) -> Iterator[Any]:
    """Ray, joined to a cluster.

    Args:
        address: ``local`` for a cluster of this process's own, or an address such as 10.0.0.5:6379.
        option: what set the address, for messages.
        user: what needs Ray, for messages.
        otherwise: what to do without Ray, for messages.
        workers: CPUs of a local cluster.

    Raises:
        InputError: Ray is not installed, or no cluster answers at the address.
        CrammedError: a task raised it.
    """
    if address == "auto":  # any local user could have written the address file
        raise InputError(f"{option}=auto: name the cluster by its address, as in 10.0.0.5:6379")
    if address == "local":
        os.environ.setdefault(_RAY_CLUSTERS, "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_extra("ray", "ray", user, f", or {otherwise}")
    began_here = not ray.is_initialized()
    if began_here:
        handler = signal.getsignal(signal.SIGTERM)
        quiet = {"log_to_driver": False, "configure_logging": False}
        if address == "local":
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        else:
            _join(lambda: ray.init(address=address, **quiet), f"{option}={address}")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it
    try:
        yield ray
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CrammedError):
            raise error.cause from None
        raise
    finally:
        if began_here:
            ray.shutdown()


def _join(join: Callable[[], object], named: str) -> None:
    """Join a cluster within a time limit, since Ray itself sets none."""
    faults: list[Exception] = []

    def attempt() -> None:
        try:
            join()
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(JOIN_SECONDS)
    if faults or thread.is_alive():
        why = f"{faults[0]}".partition("\n")[0] if faults else f"none within {JOIN_SECONDS:g} s"
        raise InputError(
            f"no Ray cluster answers at {named} ({why}): correct it, or leave it out to work on "
            "this machine alone"
        ) from (faults[0] if faults else None)
