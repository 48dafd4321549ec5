"""Where a run computes: device, number format, compilation; decided once, with reasons."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import device
from torch import dtype as Format
from torch.torch_version import TorchVersion

from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.machine.cards import known_card
from crammed.machine.workers import cores

FP8_CAPABILITY = (8, 9)
"""Lowest CUDA capability whose hardware multiplies matrices in 8 bits."""
COMPARES_8_BITS = "2.13"
"""The version of PyTorch in which regions with 8-bit products compile; in 2.11 they do not."""
DRIVER = Path("/proc/driver/nvidia/version")
"""It exists where a driver for NVIDIA's GPUs is loaded."""
COMPILE_SECONDS_ON_CPU = 1200.0
"""Work on one shape that is worth compiling on a CPU: a minute to save a fifth or more."""


@dataclass(frozen=True)
class Device:
    """What was decided, and why.

    Attributes:
        dtype: format of the activations in pretraining.
        tuning_dtype: format of the activations in fine-tuning.
        fp8: whether the layers multiply in 8 bits.
        kernels: as in `ComputeConfig`.
        recomputes: whether layers recompute their activations for the backward pass; None if
            memory decides.
        microbatch_rows: initial number of rows in one forward and backward pass.
        fits_microbatch: whether to find a better number by measuring memory.
        peak: FLOP/s that matrix products can reach; None if unknown.
        peak_source: ``table``, ``measured`` or ``unknown``; a share of a measured peak is not MFU.
        reasons: one line for each decision.
    """

    torch: device
    name: str
    dtype: Format
    tuning_dtype: Format
    fp8: bool
    kernels: str
    compile: bool
    recomputes: bool | None
    microbatch_rows: int
    fits_microbatch: bool
    peak: float | None
    peak_source: str
    reasons: tuple[str, ...]

    @property
    def in_place(self) -> bool:
        """Whether the loss may be computed in place: only where that was measured as faster."""
        eager = self.torch.type == "cpu" and not self.compile
        return self.kernels == "auto" and eager and self.dtype == torch.float32

    @property
    def regional(self) -> bool:
        """Whether one layer is compiled for all.

        Not on a CPU, where runs have always compiled whole graphs and must stay the same bit for
        bit; nor 8-bit products by an older PyTorch, whose compiler cannot compare their regions.
        """
        compared = not self.fp8 or TorchVersion(torch.__version__) >= COMPARES_8_BITS
        return self.compile and self.torch.type == "cuda" and compared

    @property
    def mfu_peak(self) -> float | None:
        """The peak that model FLOP utilisation is relative to; None if the table lacks it."""
        return self.peak if self.peak_source == "table" else None

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)
        elif self.torch.type == "mps":
            torch.mps.synchronize()


def choose_device(config: ComputeConfig, seconds: float | None = None) -> Device:
    """Resolve every ``auto``.

    Args:
        seconds: estimated work on each shape that would be compiled; None if unknown.

    Raises:
        InputError: the configuration asks for a device or format that this machine lacks.
    """
    reasons: list[str] = []
    kind = choose_kind(config, reasons)
    device = torch.device(kind)
    if config.threads is not None or torch.get_num_threads() > cores():
        torch.set_num_threads(config.threads or cores())
    name = _name(device)
    dtype, tuning_dtype = _choose_dtypes(config, device, reasons)
    fp8 = _choose_fp8(config, device, dtype, reasons)
    compiled = _choose_compile(config, kind, seconds, reasons)
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
        # Sums over many tokens, such as weight gradients, stay in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    peak, source = _peak(device, name, dtype)
    return Device(
        torch=device,
        name=name,
        dtype=dtype,
        tuning_dtype=tuning_dtype,
        fp8=fp8,
        kernels=config.kernels,
        compile=compiled,
        recomputes=None if config.recompute == "auto" else config.recompute == "on",
        microbatch_rows=config.microbatch_rows or (256 if kind == "cuda" else 32),
        fits_microbatch=config.microbatch_rows is None and kind == "cuda",
        peak=peak,
        peak_source=source,
        reasons=tuple(reasons),
    )


def choose_kind(config: ComputeConfig, reasons: list[str]) -> str:
    """The type of device to use; appends the reason to `reasons`.

    Raises:
        InputError: the configuration asks for a device that this machine lacks.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if config.device != "auto":
        if not present[config.device]:
            raise InputError(f"compute.device={config.device}: this machine has none; use auto")
        reasons.append(f"{config.device}: as configured")
        return config.device
    for kind in ("cuda", "mps"):
        if present[kind]:
            reasons.append(f"{kind}: the fastest device here")
            return kind
    reasons.append(f"cpu: {_no_gpu()}")
    return "cpu"


def _no_gpu() -> str:
    if not DRIVER.exists():
        return "there is no GPU"
    if torch.version.cuda is None:
        return "this PyTorch is built for CPUs; install its build for CUDA to use the GPU"
    return (
        f"PyTorch, built for CUDA {torch.version.cuda}, does not see the GPU; its driver may be "
        "too old"
    )


def memory_of(kind: str) -> int | None:
    """Total memory, in bytes, of a type of device; None if unknown."""
    if kind == "cuda":
        return int(torch.cuda.get_device_properties().total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):  # the system does not say
        return None


def peak_memory(device: torch.device) -> int:
    """Most bytes that this process has held, of a GPU's memory or else of the machine's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # other systems count in KiB


def native_half(device: torch.device) -> torch.dtype | None:
    """The 16-bit format that the device multiplies in hardware; None if it has none."""
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if native else torch.float16
    if device.type == "cpu" and cpu_flags() & {"avx512_bf16", "amx_bf16"}:
        return torch.bfloat16
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says, in any backend's words, that a device ran out of memory.

    Errors raised in consequence count too, such as that of a graph capture around it.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    words = str(error).lower()
    if isinstance(error, RuntimeError) and (
        "out of memory" in words or "can't allocate memory" in words
    ):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


@contextmanager
def refusing_full_memory(fault: str) -> Iterator[None]:
    """Turn an error about a device's full memory into an `InputError` with these words."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(fault) from error


def release_gpu_memory(device: torch.device) -> None:
    """Give a GPU what PyTorch keeps of its memory for later, and forget the peak so far."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def cpu_flags() -> frozenset[str]:
    """The processor's features, as Linux names them; empty elsewhere."""
    return frozenset(_cpu_info().get("flags", "").split())


@cache
def _cpu_info() -> dict[str, str]:
    """What Linux says about the first processor; empty elsewhere."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _choose_dtypes(
    config: ComputeConfig, device: torch.device, reasons: list[str]
) -> tuple[torch.dtype, torch.dtype]:
    """The formats of pretraining and of fine-tuning, which has no loss scale for float16."""
    if config.dtype != "auto":
        reasons.append(f"{config.dtype}: as configured")
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype, torch.float32 if dtype == torch.float16 else dtype
    half = native_half(device)
    if half is None:
        reasons.append("float32: the hardware has no bfloat16")
        return torch.float32, torch.float32
    name = str(half).removeprefix("torch.")
    tuning = half if device.type == "cuda" and half == torch.bfloat16 else torch.float32
    exception = "" if tuning == half else "; float32 for fine-tuning"
    reasons.append(f"{name}: the hardware has it{exception}")
    return half, tuning


def _choose_compile(
    config: ComputeConfig, kind: str, seconds: float | None, reasons: list[str]
) -> bool:
    if config.compile != "auto":
        compiled, why = config.compile == "on", "as configured"
        if compiled:
            _need_compiler(kind, "compute.compile=on")
    elif kind == "cuda":
        compiled = can_compile_for_cuda()
        why = (
            "the default on cuda"
            if compiled
            else "it needs gcc and Python's headers (on Debian: gcc python3-dev); slower without"
        )
    elif kind != "cpu":
        compiled, why = False, f"the default on {kind}"
    elif seconds is None:
        compiled, why = False, "it pays off only in long runs, which turn it on"
    elif seconds < COMPILE_SECONDS_ON_CPU:
        compiled, why = False, "the run is too short for it to pay off"
    else:
        compiled = can_compile_for_cpu()
        why = (
            "the run is long enough for it to pay off"
            if compiled
            else "it needs g++ and Python's headers (on Debian: g++ python3-dev)"
        )
    reasons.append(f"torch.compile {'on' if compiled else 'off'}: {why}")
    return compiled


def _need_compiler(kind: str, asked: str) -> None:
    missing = None
    if kind == "cuda" and not can_compile_for_cuda():
        missing = "gcc"
    elif kind == "cpu" and sys.platform == "linux" and not can_compile_for_cpu():
        missing = "g++"
    if missing is not None:
        raise InputError(
            f"{asked}: this machine lacks {missing} or Python's headers; install them (on Debian: "
            f"apt-get install {missing} python3-dev), or leave {asked} out"
        )


def can_compile_for_cpu() -> bool:
    """Whether torch.compile has what it needs for a CPU: a C++ compiler and Python's headers."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    return sys.platform == "linux" and compiler is not None and _has_headers()


def can_compile_for_cuda() -> bool:
    """Whether Triton has what it needs for its launchers: a C compiler and Python's headers."""
    compilers = [os.environ.get("CC"), "gcc", "clang"]
    return any(name and shutil.which(name) for name in compilers) and _has_headers()


def _has_headers() -> bool:
    return (Path(sysconfig.get_path("include")) / "Python.h").exists()


def _choose_fp8(
    config: ComputeConfig, device: torch.device, dtype: torch.dtype, reasons: list[str]
) -> bool:
    if config.fp8 == "off":
        return False
    nvidia = device.type == "cuda" and torch.version.hip is None
    if not (nvidia and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY):
        raise InputError(
            "compute.fp8=on: needs an NVIDIA GPU of capability 8.9 or higher; leave it off"
        )
    if dtype != torch.bfloat16:
        raise InputError(
            f"compute.fp8=on: needs bfloat16 activations; leave out compute.dtype={config.dtype}"
        )
    reasons.append("8-bit matrix products in the layers: as configured")
    return True


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = _cpu_info().get("model name") or platform.processor() or platform.machine()
    if device.type == "mps":
        return f"{model} (Apple GPU)"
    return f"{model}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def _peak(device: torch.device, name: str, dtype: torch.dtype) -> tuple[float | None, str]:
    if device.type == "cuda":
        peak = known_peak(name)
        return peak, "unknown" if peak is None else "table"
    native = dtype == native_half(device)
    return _measured_peak(device, dtype if native else torch.float32), "measured"


def known_peak(name: str) -> float | None:
    """FLOP/s of a GPU's 16-bit matrix products; None if the table lacks it."""
    card = known_card(name)
    return None if card is None else card.peak


def _measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of multiplying 1024 x 1024 matrices, the best of five."""
    a = torch.ones(1024, 1024, device=device, dtype=dtype)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        (a @ a).sum().item()  # sync
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best
