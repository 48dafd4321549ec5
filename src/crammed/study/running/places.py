"""Where the runs of a study are trained: processes on this machine, or tasks on a Ray cluster.

A run is a command, and the same command gives the same result in every place. Runs end with their
study, even if it is killed: each writes a checkpoint, from which it can be resumed in any place
that has the same folder.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from crammed.machine.engine import ray_cluster
from crammed.machine.workers import cores
from crammed.safepath import SAFE
from crammed.terminal.stopping import STARTER

VISIBLE = "CUDA_VISIBLE_DEVICES"
_SECONDS_ASLEEP = 0.5
"""How often a task that waits for its command checks whether it was stopped."""


class Ended(NamedTuple):
    """How a command ended: its exit code (negative for a signal), its output, how long it took.

    The seconds are those of the command alone, without the wait for its turn.
    """

    code: int
    out: str
    error: str
    seconds: float = 0.0


class Place(Protocol):
    """Runs commands, several at a time, from several threads.

    Attributes:
        slots: how many are worth starting at a time.
    """

    slots: int

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        """Run Python with these words to its end.

        Args:
            env: variables besides those of this process.
        """
        ...

    def stop(self) -> None:
        """Make all runs write a checkpoint and end; those started later end at once."""
        ...


class Processes:
    """Processes on this machine.

    Args:
        slots: how many run at a time.
        devices: names of GPUs; each run gets one, which several share if there are too few.
    """

    def __init__(self, slots: int, devices: Sequence[str] = ()) -> None:
        self.slots = slots
        self._started: list[subprocess.Popen[str]] = []
        self._stopped = False
        self._free: queue.Queue[str] = queue.Queue()
        for slot in range(slots if devices else 0):
            self._free.put(devices[slot % len(devices)])
        self._has_devices = bool(devices)

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        if not self._has_devices:
            return self._run(words, env or {})
        device = self._free.get()
        try:
            return self._run(words, {**(env or {}), VISIBLE: device})
        finally:
            self._free.put(device)

    def _run(self, words: Sequence[str], env: Mapping[str, str]) -> Ended:
        began, process = time.monotonic(), _begin(words, env)
        self._started.append(process)
        if self._stopped:  # while this one was starting
            self.stop()
        out, error = process.communicate()
        return Ended(process.returncode, out, error, time.monotonic() - began)

    def stop(self) -> None:
        self._stopped = True
        for process in self._started:
            process.terminate()


class RayTasks:
    """Tasks on a Ray cluster, whose machines all see the folders of the study.

    Args:
        slots: how many are handed to the cluster, which starts those that it has room for.
        threads: CPUs of each.
        gpus: GPUs of each.
    """

    def __init__(self, ray: Any, slots: int, threads: int, gpus: int) -> None:
        self.slots = slots
        self._ray = ray
        needs = {"num_cpus": threads, "num_gpus": gpus}
        self._task = ray.remote(**needs)(run_here)
        self._waiting: list[Any] = []
        self._stopped = False

    def run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
        handle = self._task.remote(list(words), dict(env or {}), os.getcwd())
        self._waiting.append(handle)
        if self._stopped:
            self.stop()
        try:
            return Ended(*self._ray.get(handle))
        except self._ray.exceptions.RayError as error:
            return Ended(1, "", f"error: the task on the Ray cluster ended: {_last_line(error)}")

    def stop(self) -> None:
        self._stopped = True
        for handle in self._waiting:
            self._ray.cancel(handle)


def _last_line(error: Exception) -> str:
    """The message of a Ray error, which its text has below a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def run_here(
    words: Sequence[str], env: Mapping[str, str], folder: str
) -> tuple[int, str, str, float]:
    """Run Python with these words as a child of this process; this is the body of a Ray task.

    Args:
        folder: the working directory, if this machine has it.
    """
    if threading.current_thread() is threading.main_thread():
        # Ray cancels by this signal, which shells ignore for what they start in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    process = _begin(words, env, folder if Path(folder).is_dir() else None)
    try:
        while True:  # the exception by which Ray stops a task does not interrupt a wait
            with suppress(subprocess.TimeoutExpired):
                out, error = process.communicate(timeout=_SECONDS_ASLEEP)
                return process.returncode, out, error, time.monotonic() - began
    except BaseException:
        process.terminate()
        process.communicate()  # until its checkpoint is written
        raise


def _begin(
    words: Sequence[str], env: Mapping[str, str], folder: str | None = None
) -> subprocess.Popen[str]:
    """Start Python with these words, as a process that ends with this one."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env, SAFE: "1", STARTER: str(os.getpid())},
        cwd=folder,
    )


def gpus() -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES may select the GPUs that this process may use."""
    import torch

    if (named := os.environ.get(VISIBLE)) is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]


def default_jobs() -> int:
    """How many runs train at a time by default: one, or one on each GPU."""
    return max(1, len(gpus()))


def threads_of(jobs: int) -> int:
    """CPU threads of each run if this many train at a time."""
    return max(1, cores() // jobs)


@contextmanager
def opened(jobs: int, runs: int, *, on_gpus: bool, cluster: str | None) -> Iterator[Place]:
    """The place for the runs of a study.

    Args:
        jobs: runs at a time on this machine; on a cluster, this only decides the threads of each.
        runs: how many runs there are.
        on_gpus: whether they use GPUs if there are any; each run gets one.
        cluster: address of a Ray cluster; None is this machine.

    Raises:
        InputError: Ray is not installed, or no cluster answers.
    """
    if cluster is None:
        yield Processes(jobs, gpus() if on_gpus else [])
        return
    with ray_cluster(cluster, "--ray", "--ray", "leave --ray out", cores()) as ray:
        has_gpus = on_gpus and ray.cluster_resources().get("GPU", 0) >= 1
        yield RayTasks(ray, runs, threads_of(jobs), int(has_gpus))
