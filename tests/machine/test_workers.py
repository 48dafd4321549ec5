"""How many cores there are for this process."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.machine import workers
from crammed.machine.device import choose_device
from crammed.safepath import SAFE
from support.command import python

V1 = "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 cores without limits; returns the root of its control groups."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(workers, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(workers, "_OWN_GROUPS", tmp_path / "self")
    return tmp_path


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000"}, 16),
        ("0::/\n", {"cpu.max": "350000 100000"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "nonsense"}, 16),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "9"}, 16),
        (V1, {"cpu/cpu.cfs_quota_us": "50", "cpu/cpu.cfs_period_us": "10"}, 5),
        (V1, {"cpuset/cpu.cfs_quota_us": "50", "cpuset/cpu.cfs_period_us": "10"}, 16),
    ],
)
def test_limits_of_containers_count(
    machine: Path, own: str, files: Mapping[str, str], expected: int
) -> None:
    (machine / "self").write_text(own)
    for name, text in files.items():
        (machine / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / "cgroup" / name).write_text(text + "\n")
    assert workers.cores() == expected


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="reads the kernel's count")
@pytest.mark.parametrize(
    ("own", "limited"), [("/", ""), ("/of/the/host", ""), ("/job", "job"), ("/job/step", "job")]
)
def test_memory_that_only_caches_files_is_available(machine: Path, own: str, limited: str) -> None:
    (machine / "self").write_text(f"0::{own}\n")
    (machine / "cgroup" / "job" / "step").mkdir(parents=True)
    (machine / "cgroup" / "job" / "step" / "memory.max").write_text("max\n")
    group = machine / "cgroup" / limited
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("4000\n")
    (group / "memory.stat").write_text("anon 1000\nfile 3000\ninactive_file 2500\n")
    assert workers.available_memory() == 3500


@pytest.mark.parametrize(
    ("asked", "expected"), [("1", 1), ("3,2", 3), ("64", 16), ("", 16), ("0", 16)]
)
def test_the_variable_for_threads_counts(
    machine: Path, monkeypatch: pytest.MonkeyPatch, asked: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert workers.cores() == expected


def test_pytorch_takes_no_more_threads_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crammed.machine.device.cores", lambda: 2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        choose_device(ComputeConfig(device="cpu"))
        assert torch.get_num_threads() == 2
        choose_device(ComputeConfig(device="cpu", threads=3))  # what is asked for is given
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def _told(monkeypatch: pytest.MonkeyPatch, told: Mapping[str, str]) -> None:
    for name in ("WORLD_SIZE", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({}, 1),
        ({"WORLD_SIZE": ""}, 1),
        ({"WORLD_SIZE": " 1 "}, 1),
        ({"WORLD_SIZE": "2", **TORCHRUN}, 2),
    ],
)
def test_processes_that_train_together_are_those_of_torchrun(
    told: dict[str, str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(monkeypatch, told)
    assert workers.world_size() == size


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1'"),
        ({"WORLD_SIZE": "4"}, "without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", **TORCHRUN, "RANK": ""}, "without RANK:"),
        ({"WORLD_SIZE": "2", **TORCHRUN, "RANK": "first"}, "RANK is 'first'"),
        ({"WORLD_SIZE": "2", **TORCHRUN, "RANK": "2"}, "RANK is 2"),
        ({"WORLD_SIZE": "2", **TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
    ],
)
def test_half_of_what_torchrun_says_is_refused(
    told: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(monkeypatch, told)
    with pytest.raises(InputError, match=re.escape(fault)) as refused:
        workers.world_size()
    assert "unset WORLD_SIZE" in str(refused.value)


def test_workers_are_protected_and_their_program_keeps_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that the program starts itself may need to import what lies beside it."""
    for before in (None, "", "1"):
        monkeypatch.delenv(SAFE, raising=False)
        if before is not None:
            monkeypatch.setenv(SAFE, before)
        with workers.worker_processes(1, "nothing") as pool:
            # For a function of this module, the worker would import PyTorch.
            assert pool.submit(os.getenv, SAFE).result() == "1"
        assert os.environ.get(SAFE) == before


def test_an_error_ends_no_other_processes_of_the_program() -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as before, ProcessPoolExecutor(1, spawn) as meanwhile:
        assert before.submit(abs, -1).result() == 1
        with pytest.raises(ZeroDivisionError), workers.worker_processes(1, "nothing"):
            1 / (1 - meanwhile.submit(abs, -1).result())
        assert [pool.submit(abs, -2).result() for pool in (before, meanwhile)] == [2, 2]


def test_a_process_that_may_start_no_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)
    words = r"^a daemonic process, as in a multiprocessing\.Pool, .*: set compute\.workers=1"
    with pytest.raises(InputError, match=words), workers.worker_processes(2, "compute.workers=1"):
        pass


def test_workers_do_not_run_the_script_that_starts_them(tmp_path: Path) -> None:
    """Not even one without ``if __name__ == "__main__"``, as people write them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from crammed.machine.workers import worker_processes\n"
        "print('begun')\n"
        "with worker_processes(2, 'x') as pool:\n"
        "    print(*pool.map(abs, [-1, -2]))\n"
    )
    done = python(script)
    assert (done.stdout, done.returncode) == ("begun\n1 2\n", 0), done.stderr
