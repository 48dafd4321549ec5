"""Joules by the counters of a device, and nothing where there are none."""

from __future__ import annotations

import ctypes
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crammed.data.corpus import Corpus
from crammed.machine import energy
from crammed.machine.device import Device
from crammed.machine.energy import Counter, Meter, counters_of, cpu_counters, metering
from crammed.pretraining import train_and_export
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT
from support.command import wait_for
from support.text import tiny


def zone(folder: Path, place: str, name: str, used: int, most: int = 1000_000_000) -> Path:
    """A zone as Linux has them below /sys/class/powercap; numbers are microjoules."""
    made = folder / place
    made.mkdir(parents=True)
    (made / "name").write_text(f"{name}\n")
    (made / "max_energy_range_uj").write_text(f"{most}\n")
    (made / "energy_uj").write_text(f"{used}\n")
    return made / "energy_uj"


def test_a_cpu_counts_packages_and_memory_once(tmp_path: Path) -> None:
    counts = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    files = [zone(tmp_path, place, name, 5_000_000) for place, name in counts.items()]
    meter = Meter(cpu_counters(tmp_path), before=0.5)
    assert meter.joules() == 0.5
    for number, file in enumerate(files):
        file.write_text(str(5_000_000 + 10**number * 1_000_000))
    assert meter.joules() == pytest.approx(0.5 + 1 + 100 + 1000)


def test_a_counter_that_goes_round_goes_on(tmp_path: Path) -> None:
    used = zone(tmp_path, "intel-rapl:0", "package-0", 90_000_000, most=100_000_000)
    meter = Meter(cpu_counters(tmp_path))
    for value in (99_000_000, 4_000_000, 3_000_000):
        used.write_text(str(value))
        meter.joules()
    assert meter.joules() == pytest.approx(9 + 5 + 99)


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert cpu_counters(tmp_path / "none") == []
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 1_000_000)
    meter = Meter(cpu_counters(tmp_path))
    second.unlink()
    assert cpu_counters(tmp_path) == []
    assert meter.joules() is None
    second.write_text("2000000")
    first.write_text("2000000")
    assert meter.joules() is None  # as what was used in between is not
    assert Meter(cpu_counters(tmp_path), before=None).joules() is None
    assert Meter().joules() is None


def test_no_round_of_a_counter_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "SECONDS_BETWEEN_LOOKS", 0.001)
    looked: list[float] = []

    def read() -> float:
        looked.append(8.0 * len(looked) % 10.0)
        return looked[-1]

    with metering([Counter(read, period=10.0)], before=0.0) as meter:
        wait_for(lambda: len(looked) > 5)
        joules = meter.joules()
    assert joules is not None
    assert joules >= 8.0 * 5


def test_a_gpu_counts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(uuid="12-34", used=7_000, fails=0)

    def count(_: Any, used: Any) -> int:
        used._obj.value = gpu.used
        return int(gpu.fails)

    library = SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetHandleByUUID=lambda name, _: 0 if name == b"GPU-12-34" else 6,
        nvmlDeviceGetTotalEnergyConsumption=count,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    meter = Meter(counters_of(torch.device("cuda")))
    gpu.used = 9_500
    assert meter.joules() == 2.5
    gpu.fails = 3  # which is "not supported"
    assert meter.joules() is None
    assert counters_of(torch.device("cuda")) == []
    gpu.fails, gpu.uuid = 0, "of another"
    assert counters_of(torch.device("cuda")) == []
    assert counters_of(torch.device("mps")) == []


def test_a_run_adds_up_what_all_its_processes_used(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = itertools.count()
    monkeypatch.setattr(
        "crammed.pretraining.counters_of", lambda _: [Counter(lambda: 100.0 * next(reads))]
    )
    config = tiny("crammed", budget={"limit": "3updates"})

    def finish(name: str, joules: float | None) -> float | None:
        """Train on from a heartbeat of an earlier process."""
        with RunDir.open(tmp_path / name, config) as run:
            beat = {"charged_s": 0.0} | ({} if joules is None else {"joules": joules})
            (run.path / "heartbeat.json").write_text(json.dumps(beat))
            summary = train_and_export(run, corpus, cpu, SILENT)
            assert summary.joules == run.last_joules()
        used: float | None = summary.joules
        return used

    assert finish("older", None) is None  # part of it is not known
    used = finish("known", 7.0)
    assert used is not None
    assert used % 100.0 == 7.0
    assert used > 100.0


def test_a_run_without_counters_says_nothing(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.pretraining.counters_of", lambda _: [])
    with RunDir.open(tmp_path, tiny("crammed", budget={"limit": "2updates"})) as run:
        assert train_and_export(run, corpus, cpu, SILENT).joules is None
        assert "joules" not in json.loads((tmp_path / "heartbeat.json").read_text())
