"""Where a run computes: device, number format, compilation. Decided once, with the reasons."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import device, dtype

from crammed.config import ComputeConfig
from crammed.errors import InputError

TERA = 1e12

PEAK_TFLOPS: dict[str, float] = {
    # Dense 16-bit matrix products with 32-bit accumulation, TFLOP/s: the longest name that
    # occurs in the device's name counts. The paper's three cards as it rates them (section 2).
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "RTX A6000": 154.8,
    "RTX A4000": 88.45,
    "RTX 2080 Ti": 53.8,
    "V100": 125.0,
    "TITAN RTX": 130.5,
}


@dataclass(frozen=True)
class Device:
    """What was decided, and why.

    Attributes:
        microbatch_rows: rows of one forward and backward pass to begin with.
        fits_microbatch: find a better number by measuring memory.
        peak: FLOP/s that matrix products can reach, or None where it is unknown.
        peak_source: ``table`` or ``measured``; a share of a measured peak is no MFU.
    """

    torch: device
    name: str
    dtype: dtype
    compile: bool
    microbatch_rows: int
    fits_microbatch: bool
    peak: float | None
    peak_source: str
    reasons: tuple[str, ...]

    @property
    def mfu_peak(self) -> float | None:
        """The peak that model FLOP utilisation is a share of, where the table has one."""
        return self.peak if self.peak_source == "table" else None

    def synchronize(self) -> None:
        """Wait until everything launched is done."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)
        elif self.torch.type == "mps":
            torch.mps.synchronize()


def choose_device(config: ComputeConfig) -> Device:
    """Resolve every ``auto``.

    Raises:
        InputError: a device or format was asked for that this machine does not have.
    """
    reasons: list[str] = []
    kind = choose_kind(config, reasons)
    device = torch.device(kind)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    name = _name(device)
    dtype = _choose_dtype(config, device, reasons)
    compiled = config.compile == "on" or (config.compile == "auto" and kind == "cuda")
    why = "as asked" if config.compile != "auto" else f"the default on {kind}"
    reasons.append(f"torch.compile {'on' if compiled else 'off'}: {why}")
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
    peak, source = _peak(device, name)
    return Device(
        torch=device,
        name=name,
        dtype=dtype,
        compile=compiled,
        microbatch_rows=config.microbatch_rows or (256 if kind == "cuda" else 32),
        fits_microbatch=config.microbatch_rows is None and kind == "cuda",
        peak=peak,
        peak_source=source,
        reasons=tuple(reasons),
    )


def choose_kind(config: ComputeConfig, reasons: list[str]) -> str:
    """The device that computes, and why.

    Raises:
        InputError: one was asked for that this machine does not have.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if config.device != "auto":
        if not present[config.device]:
            raise InputError(f"compute.device={config.device}: this machine has none; try auto")
        reasons.append(f"{config.device}: as asked")
        return config.device
    for kind in ("cuda", "mps"):
        if present[kind]:
            reasons.append(f"{kind}: the fastest present")
            return kind
    reasons.append("cpu: no GPU is present")
    return "cpu"


def _choose_dtype(config: ComputeConfig, device: torch.device, reasons: list[str]) -> torch.dtype:
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if config.dtype == "auto":
        reasons.append("bfloat16: the device has it" if native else "float32: no native bfloat16")
        return torch.bfloat16 if native else torch.float32
    reasons.append(f"{config.dtype}: as asked")
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if device.type == "mps":
        return f"{model} (Apple GPU)"
    return f"{model}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def _peak(device: torch.device, name: str) -> tuple[float | None, str]:
    if device.type == "cuda":
        peak = known_peak(name)
        return peak, "unknown" if peak is None else "table"
    return _measured_peak(device), "measured"


def known_peak(name: str) -> float | None:
    """FLOP/s of a GPU's 16-bit matrix products, where the table has it."""
    known = [entry for entry in PEAK_TFLOPS if entry.lower() in name.lower()]
    return PEAK_TFLOPS[max(known, key=len)] * TERA if known else None


def _measured_peak(device: torch.device) -> float:
    """FLOP/s of 1024 x 1024 float32 products, the best of five."""
    a = torch.ones(1024, 1024, device=device)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        (a @ a).sum().item()  # sync
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best
