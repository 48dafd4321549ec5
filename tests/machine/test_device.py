"""The choice of device, number format and compilation, and what is refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.evaluation.finetuning.engine import Numerics
from crammed.machine.device import (
    COMPILE_SECONDS_ON_CPU,
    Device,
    choose_device,
    cpu_flags,
    native_half,
)

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def card(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str = "NVIDIA H200"
) -> None:
    """Make PyTorch report such a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that there is no GPU, and a processor with these flags: 1 FLOP/s for each bit."""

    def install(*flags: str) -> None:
        monkeypatch.setattr(
            "crammed.machine.device._measured_peak", lambda _, dtype: 8.0 * dtype.itemsize
        )
        for module in (torch.cuda, torch.mps):
            monkeypatch.setattr(module, "is_available", lambda: False)
        monkeypatch.setattr("crammed.machine.device.cpu_flags", lambda: frozenset(flags))

    return install


@pytest.mark.parametrize(
    ("capability", "expected", "tuning"),
    [
        ((7, 0), FLOAT16, FLOAT32),  # V100
        ((7, 5), FLOAT16, FLOAT32),  # 2080 Ti, TITAN RTX
        ((8, 0), BFLOAT16, BFLOAT16),
        ((9, 0), BFLOAT16, BFLOAT16),
        ((12, 0), BFLOAT16, BFLOAT16),
    ],
)
def test_a_gpu_gets_the_16_bits_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    expected: torch.dtype,
    tuning: torch.dtype,
) -> None:
    card(monkeypatch, capability)
    device = choose_device(ComputeConfig())
    assert device.dtype == expected
    assert Numerics.on(device).dtype == tuning
    assert device.compile
    assert device.fits_microbatch
    assert device.recomputes is None
    name = str(expected).removeprefix("torch.")
    assert any(reason.startswith(f"{name}: the hardware has it") for reason in device.reasons)


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        (False, None, "there is no GPU"),
        (True, None, "this PyTorch is built for CPUs"),
        (True, "13.0", "PyTorch, built for CUDA 13.0, does not see the GPU"),
    ],
)
def test_a_gpu_that_is_not_used_is_not_denied(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    processor: Callable[..., None],
    driver: bool,
    cuda: str | None,
    expected: str,
) -> None:
    processor()
    there = tmp_path if driver else tmp_path / "missing"
    monkeypatch.setattr("crammed.machine.device.DRIVER", there)
    monkeypatch.setattr("torch.version.cuda", cuda)
    assert choose_device(ComputeConfig()).reasons[0].startswith(f"cpu: {expected}")


@pytest.mark.parametrize(
    ("there", "header", "compiled"),
    [("gcc", True, True), ("clang", True, True), ("", True, False), ("gcc", False, False)],
)
def test_a_gpu_compiles_where_triton_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: str, header: bool, compiled: bool
) -> None:
    card(monkeypatch, (9, 0))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name == there else None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    if header:
        (tmp_path / "Python.h").touch()
    device = choose_device(ComputeConfig())
    assert device.compile == compiled
    assert compiled or any("it needs gcc and Python's header" in each for each in device.reasons)
    asked = ComputeConfig(compile="on")
    if compiled:
        assert choose_device(asked).compile
        return
    with pytest.raises(InputError, match="lacks gcc or Python's headers") as error:
        choose_device(asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("avx2", "avx512f"), FLOAT32),
        (("avx512f", "avx512_bf16"), BFLOAT16),
        (("amx_tile", "amx_bf16"), BFLOAT16),
        ((), FLOAT32),
    ],
)
def test_a_processor_trains_in_bfloat16_where_it_multiplies_it(
    processor: Callable[..., None], flags: tuple[str, ...], expected: torch.dtype
) -> None:
    processor(*flags)
    device = choose_device(ComputeConfig())
    assert device.dtype == expected
    assert Numerics.on(device).dtype == FLOAT32
    assert not device.compile
    assert (device.peak, device.peak_source) == (8.0 * expected.itemsize, "measured")
    assert (native_half(device.torch) == BFLOAT16) == (expected == BFLOAT16)


def test_this_processor_is_measured(cpu: Device) -> None:
    assert cpu.peak_source == "measured"
    assert cpu.peak is not None
    assert cpu.peak > 1e8


def test_this_processors_flags_are_read() -> None:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    assert cpu_flags() == set(flags[1].split() if flags else ())


def test_apple_computes_in_float32_with_a_fused_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    monkeypatch.setattr("crammed.machine.device._measured_peak", lambda device, dtype: 1e12)
    device = choose_device(ComputeConfig())
    assert device.torch.type == "mps"
    assert device.dtype == device.tuning_dtype == FLOAT32
    assert not device.compile
    assert not device.fits_microbatch
    assert "mps" in _get_fused_kernels_supported_devices()


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16"])
def test_a_configured_format_is_taken(
    processor: Callable[..., None], asked: Literal["float32", "bfloat16", "float16"]
) -> None:
    processor()
    device = choose_device(ComputeConfig(dtype=asked))
    assert device.dtype == getattr(torch, asked)
    assert device.tuning_dtype == (BFLOAT16 if asked == "bfloat16" else FLOAT32)
    assert f"{asked}: as configured" in device.reasons


def test_8_bits_need_a_gpu_that_has_them(
    monkeypatch: pytest.MonkeyPatch, processor: Callable[..., None]
) -> None:
    asked = ComputeConfig(fp8="on")
    processor("avx512_bf16")
    with pytest.raises(InputError, match=r"compute\.fp8=on: needs an NVIDIA GPU of capability 8"):
        choose_device(asked)
    card(monkeypatch, (8, 6))
    with pytest.raises(InputError, match=r"capability 8\.9 or higher; leave it off"):
        choose_device(asked)
    card(monkeypatch, (8, 9), "NVIDIA GeForce RTX 4090")
    assert choose_device(asked).fp8
    assert not choose_device(ComputeConfig()).fp8
    with pytest.raises(InputError, match=r"leave out compute\.dtype=float32"):
        choose_device(ComputeConfig(fp8="on", dtype="float32"))


@pytest.mark.parametrize(
    ("asked", "seconds", "compiler", "compiled", "why"),
    [
        ("auto", None, True, False, "it pays off only in long runs"),
        ("auto", COMPILE_SECONDS_ON_CPU - 1, True, False, "too short"),
        ("auto", COMPILE_SECONDS_ON_CPU, True, True, "long enough"),
        ("auto", COMPILE_SECONDS_ON_CPU, False, False, "python3-dev"),
        ("off", 1e9, False, False, "as configured"),
        ("on", 1.0, True, True, "as configured"),
        ("on", 1.0, False, False, "lacks g++ or Python's headers"),
    ],
)
def test_a_processor_compiles_for_runs_long_enough(
    monkeypatch: pytest.MonkeyPatch,
    processor: Callable[..., None],
    tmp_path: Path,
    asked: Literal["auto", "on", "off"],
    seconds: float | None,
    compiler: bool,
    compiled: bool,
    why: str,
) -> None:
    processor()
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++" if compiler else None)
    if asked == "on" and not compiler:
        with pytest.raises(InputError, match=re.escape(why)):
            choose_device(ComputeConfig(compile=asked), seconds)
        return
    device = choose_device(ComputeConfig(compile=asked), seconds)
    assert device.compile == compiled
    assert why in device.reasons[-1]
    if compiled and asked == "auto":
        (tmp_path / "Python.h").unlink()
        assert not choose_device(ComputeConfig(), seconds).compile


@pytest.mark.parametrize(
    ("version", "fp8", "regional"),
    [("2.11.0+cu130", False, True), ("2.11.0+cu130", True, False), ("2.13.0", True, True)],
)
def test_an_older_pytorch_compiles_8_bits_as_one_graph(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, version: str, *, fp8: bool, regional: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    gpu = replace(cpu, torch=torch.device("cuda"), compile=True, fp8=fp8)
    assert gpu.regional is regional
    assert not replace(gpu, compile=False).regional
