from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crammed.config import ComputeConfig
from crammed.errors import CrammedError, InputError
from crammed.machine.engine import open_engine
from support.command import PATIENCE


def _slow_square(number: int) -> int:
    time.sleep(0.05 if number % 3 == 0 else 0.0)
    return number * number


def _refuse(number: int) -> int:
    raise InputError(f"not {number}")


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_jobs_and_few_jobs_wait(workers: int) -> None:
    drawn = 0

    def jobs() -> Iterator[int]:
        nonlocal drawn
        for number in range(1, 21):
            drawn = number
            yield number

    results = []
    with open_engine(ComputeConfig(workers=workers)) as engine:
        for result in engine.map(_slow_square, jobs()):
            results.append(result)
            assert drawn - len(results) <= workers + 1
    assert results == [n * n for n in range(1, 21)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_workers_error_reaches_the_driver(workers: int) -> None:
    with pytest.raises(InputError, match="not 1"):
        with open_engine(ComputeConfig(workers=workers)) as engine:
            list(engine.map(_refuse, [1, 2, 3]))


def test_a_dead_worker_is_reported_in_one_line() -> None:
    with pytest.raises(CrammedError, match="a worker process died"):
        with open_engine(ComputeConfig(workers=2)) as engine:
            list(engine.map(_die, [1, 2, 3]))


class FakeRay:
    """A cluster without the cluster; as far as the engine needs it."""

    def __init__(self, init: Callable[..., object]) -> None:
        self.init = init
        self.exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError)
        self.is_initialized = lambda: False
        self.shutdown = lambda: None
        self.cluster_resources = dict
        self.get = list

    def use(self, monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
        monkeypatch.setitem(sys.modules, "ray", self)
        for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED"):
            monkeypatch.setenv(name, "")  # so that it is restored
            monkeypatch.delenv(name)
        if address is None:
            monkeypatch.delenv("RAY_ADDRESS", raising=False)
        else:
            monkeypatch.setenv("RAY_ADDRESS", address)


RAY = ComputeConfig(engine="ray", workers=3)


@pytest.mark.parametrize("address", [None, "", "local", "10.0.0.5:6379"])
def test_ray_joins_no_cluster_that_is_not_named(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    seen: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        seen.append({**options, "clusters": os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")})

    FakeRay(init).use(monkeypatch, address)
    with open_engine(RAY):
        pass
    named = address not in (None, "", "local")
    assert [each["address"] for each in seen] == [address if named else "local"]
    assert seen[0]["clusters"] == (None if named else "0")
    assert seen[0].get("num_cpus") == (None if named else 3)


def test_ray_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crammed.machine.engine.JOIN_SECONDS", 0.01)
    over = threading.Event()
    FakeRay(lambda **_: over.wait(PATIENCE)).use(monkeypatch, "10.0.0.5:6379")
    with pytest.raises(InputError, match=r"no Ray cluster answers at RAY_ADDRESS=10\.0"):
        with open_engine(RAY):
            pass
    over.set()

    def refuse(**_: Any) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr("crammed.machine.engine.JOIN_SECONDS", PATIENCE)
    FakeRay(refuse).use(monkeypatch, "10.0.0.5:6379")
    with pytest.raises(InputError, match="no Ray cluster answers"):
        with open_engine(RAY):
            pass


def test_ray_does_not_look_for_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay(lambda **_: pytest.fail("joined")).use(monkeypatch, "auto")
    with pytest.raises(InputError, match="name the cluster by its address"):
        with open_engine(RAY):
            pass


def test_a_missing_ray_has_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    message = r"pip install 'crammed\[ray\]', or leave compute.engine at processes"
    with pytest.raises(InputError, match=message):
        with open_engine(RAY):
            pass


REAL = """
import os, signal, sys
from pathlib import Path
from crammed.config import ComputeConfig
from crammed.machine.engine import open_engine

def negate(number):
    return -number

def listening():
    lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
    return {line[9]: line[1].partition(":")[0] for line in lines if line[3] == "0A"}

def sockets(process):
    for file in Path(process, "fd").iterdir():
        try:
            target = os.readlink(file)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]

def descends(process):
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False

handler = signal.getsignal(signal.SIGTERM)
with open_engine(ComputeConfig(engine="ray", workers=1)) as engine:
    assert list(engine.map(negate, [1, 2, 3])) == [-1, -2, -3]
    assert signal.getsignal(signal.SIGTERM) == handler
    heard = listening()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if descends(int(process.name)):
                print(*(heard[each] for each in sockets(process) if each in heard), sep="\\n")
        except (FileNotFoundError, PermissionError):
            continue
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cluster_of_our_own_listens_to_this_machine_alone(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file = tmp_path / "real.py"
    file.write_text(REAL)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    addresses = set(done.stdout.split())
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
