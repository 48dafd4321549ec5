"""Energy that training uses, in joules, from the counters of a GPU, or of a CPU and its memory.

They count whatever runs on the device. If there are none, or this process may not read them, the
energy is unknown, and is not estimated.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RAPL = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
"""NVIDIA's management library, which comes with the driver."""
SECONDS_BETWEEN_LOOKS = 10.0
"""A CPU's counter may wrap around within two minutes."""


@dataclass(frozen=True)
class Counter:
    """A count of joules.

    Attributes:
        read: returns the joules since some fixed moment; raises OSError or ValueError if it cannot.
        period: joules after which it wraps around to 0.
    """

    read: Callable[[], float]
    period: float = math.inf


class Meter:
    """Adds up what counters count from now on; without counters, the energy is unknown.

    Args:
        before: joules that earlier processes used; None if unknown.
    """

    def __init__(self, counters: Sequence[Counter] = (), before: float | None = 0.0) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._last = _read(counters)
        self._used: float | None = before if self._last else None

    def joules(self) -> float | None:
        """Joules used so far; None if unknown."""
        with self._lock:
            if self._used is None:
                return None
            now = _read(self._counters)
            for counter, before, after in zip(self._counters, self._last, now, strict=False):
                self._used += after - before + (counter.period if after < before else 0.0)
            if not now or not math.isfinite(self._used):
                self._used = None
            self._last = now
            return self._used


def _read(counters: Sequence[Counter]) -> list[float]:
    """The readings of all counters; empty if one of them cannot be read."""
    try:
        return [counter.read() for counter in counters]
    except (OSError, ValueError):
        return []


@contextmanager
def metering(counters: Sequence[Counter], before: float | None) -> Iterator[Meter]:
    """A meter that reads its counters often enough to miss no wrap-around.

    Args:
        before: as for `Meter`.
    """
    meter, over = Meter(counters, before), threading.Event()

    def look() -> None:
        while not over.wait(SECONDS_BETWEEN_LOOKS) and meter.joules() is not None:
            pass

    if any(math.isfinite(counter.period) for counter in counters):
        threading.Thread(target=look, daemon=True).start()
    try:
        yield meter
    finally:
        over.set()


def counters_of(device: torch.device) -> list[Counter]:
    """The counters of a device; none if its energy cannot be known."""
    if device.type == "cuda":
        return gpu_counters(device)
    return cpu_counters() if device.type == "cpu" else []


def cpu_counters(folder: Path = RAPL) -> list[Counter]:
    """Counters of all processor packages and memory; none if one of them cannot be read."""
    counters = []
    try:
        for zone in sorted(folder.glob("intel-rapl:*")):  # also on AMD processors
            name = (zone / "name").read_text("utf-8").strip()
            if name.startswith("package") or name == "dram":  # others are part of these
                period = _microjoules(zone / "max_energy_range_uj")
                counters.append(Counter(partial(_microjoules, zone / "energy_uj"), period))
    except (OSError, ValueError):
        return []
    return counters if _read(counters) else []  # on most systems only root may


def _microjoules(file: Path) -> float:
    return int(file.read_text("utf-8")) / 1e6


def gpu_counters(device: torch.device) -> list[Counter]:
    """The counter of an NVIDIA GPU, Volta or later; none for others."""
    import torch

    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return []
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        return []

    def read() -> float:
        used = ctypes.c_ulonglong()
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)):
            raise OSError("the GPU does not say")
        return used.value / 1000.0

    counters = [Counter(read)]
    return counters if _read(counters) else []
