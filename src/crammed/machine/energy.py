"""Joules that training takes, by the counters of a GPU, or of a CPU and the memory beside it.

They count whatever runs on the device. Where there are none, or this process may not read them,
nothing is known, and nothing is guessed.
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
"""A CPU's counter may go round in two minutes."""


@dataclass(frozen=True)
class Counter:
    """A count of joules.

    Attributes:
        read: gives the joules since some moment; raises OSError or ValueError if it cannot.
        period: joules after which it begins at 0 again.
    """

    read: Callable[[], float]
    period: float = math.inf


class Meter:
    """Adds up what counters say from now on; without counters, nothing is known.

    Args:
        before: joules that earlier processes used; None if that is not known.
    """

    def __init__(self, counters: Sequence[Counter] = (), before: float | None = 0.0) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._last = _read(counters)
        self._used: float | None = before if self._last else None

    def joules(self) -> float | None:
        """Joules up to now; None if they are not known."""
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
    """What all counters say; nothing if one of them cannot be read."""
    try:
        return [counter.read() for counter in counters]
    except (OSError, ValueError):
        return []


@contextmanager
def metering(counters: Sequence[Counter], before: float | None) -> Iterator[Meter]:
    """A meter that looks at its counters often enough to miss no round of theirs.

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
    """The counters of a device; none where what it uses cannot be known."""
    if device.type == "cuda":
        return gpu_counters(device)
    return cpu_counters() if device.type == "cpu" else []


def cpu_counters(folder: Path = RAPL) -> list[Counter]:
    """Those of all processor packages and their memory; none if one of them cannot be read."""
    counters = []
    try:
        for zone in sorted(folder.glob("intel-rapl:*")):  # of AMD, too
            name = (zone / "name").read_text("utf-8").strip()
            if name.startswith("package") or name == "dram":  # others are parts of these
                period = _microjoules(zone / "max_energy_range_uj")
                counters.append(Counter(partial(_microjoules, zone / "energy_uj"), period))
    except (OSError, ValueError):
        return []
    return counters if _read(counters) else []  # which root alone may do on most systems


def _microjoules(file: Path) -> float:
    return int(file.read_text("utf-8")) / 1e6


def gpu_counters(device: torch.device) -> list[Counter]:
    """That of an NVIDIA GPU since Volta; none of others."""
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
