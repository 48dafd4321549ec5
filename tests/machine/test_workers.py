"""How many cores there are for this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from crammed.config import ComputeConfig
from crammed.machine import workers
from crammed.machine.device import choose_device

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
def test_memory_that_only_caches_files_is_available(machine: Path) -> None:
    group = machine / "cgroup"
    group.mkdir()
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
