"""A GPU that does nothing, in a build of PyTorch for CPUs.

Call `load` before PyTorch is imported, and `pretend` before anything is compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("device.cpp")
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "step-on-paper"
"""A folder that nobody else can write to, for the library and the compilers' caches."""
CAPABILITY = (9, 0)


class Properties:
    """The properties of an H200 or H100 that the compiler asks for."""

    name = "NVIDIA H200"
    major, minor = CAPABILITY
    total_memory = 141 * 2**30
    multi_processor_count = 132
    warp_size = 32
    regs_per_multiprocessor = 65_536
    max_threads_per_block = 1_024
    max_threads_per_multi_processor = 2_048
    shared_memory_per_block = 48 * 2**10
    shared_memory_per_block_optin = 227 * 2**10
    shared_memory_per_multiprocessor = 228 * 2**10
    L2_cache_size = 50 * 2**20
    gcnArchName = ""  # noqa: N815


def missing() -> str | None:
    """The first thing that this machine lacks for a step on paper; None if it lacks nothing."""
    if sys.platform != "linux":
        return "Linux"
    if shutil.which("g++") is None:
        return "g++"
    if importlib.util.find_spec("triton") is None:
        return "triton"
    return None


def load() -> None:
    """Build the device if that has not been done yet, and load it after PyTorch's libraries.

    Raises:
        RuntimeError: PyTorch has already been imported.
        subprocess.CalledProcessError: the compiler failed.
    """
    if "torch" in sys.modules:
        raise RuntimeError("the GPU must be loaded before PyTorch is imported")
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    made_of = SOURCE.read_bytes() + (home / "version.py").read_bytes()
    library = KEPT / f"device-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not library.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{home}/include", str(SOURCE)]
        command += [f"-L{home}/lib", "-ltorch_cpu", "-lc10", "-o", str(part)]
        subprocess.run(command, check=True)
        part.replace(library)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(KEPT / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(KEPT / "triton")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(home / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))


def pretend() -> None:
    """Make PyTorch's Python side see the device. The imports here ask for it at once."""
    import torch

    cuda: Any = importlib.import_module("torch.cuda")
    low: Any = importlib.import_module("torch._C")
    _answer(cuda, True, "is_available is_initialized is_bf16_supported _is_compiled")
    _answer(cuda, None, "_lazy_init init set_device synchronize empty_cache set_rng_state")
    _answer(cuda, None, "reset_peak_memory_stats")
    _answer(cuda, 0, "current_device _exchange_device _maybe_exchange_device")
    _answer(cuda, 0, "memory_allocated max_memory_allocated")
    _answer(cuda, 1, "device_count")
    _answer(cuda, Properties, "get_device_properties")
    _answer(cuda, CAPABILITY, "get_device_capability")
    _answer(cuda, Properties.name, "get_device_name")
    _answer(cuda, (Properties.total_memory, Properties.total_memory), "mem_get_info")
    _answer(low, 0, "_cuda_getDevice _cuda_setDevice _cuda_exchangeDevice")
    _answer(low, 0, "_cuda_maybeExchangeDevice _cuda_getCurrentRawStream")
    cuda.get_rng_state = lambda device=None: torch.zeros(16, dtype=torch.uint8)
    cuda.Event = _Event
    version: Any = importlib.import_module("torch.version")
    version.cuda = "13.0"
    low._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") on fake tensors
    fakes = importlib.import_module("torch._subclasses")
    fakes.FakeTensorMode.avoid_device_init = property(lambda self: True)
    interface = importlib.import_module("torch._dynamo.device_interface")
    _answer(interface, 0, "get_cuda_stream")
    interface.CudaInterface.get_raw_stream = staticmethod(lambda index: 0)
    importlib.import_module("triton").runtime.driver.set_active(_Driver())
    helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
    _answer(helpers, None, "set_driver_to_gpu")


def _answer(holder: Any, answer: object, names: str) -> None:
    """Replace functions by stubs that return a constant."""
    for name in names.split():  # a stub each: the compiler knows functions by identity
        setattr(holder, name, lambda *args, **kwargs: answer)


class _Event:
    """Nothing takes time here."""

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...


class _Driver:
    """The part of Triton's driver that compiling uses."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        major, minor = CAPABILITY
        return GPUTarget("cuda", 10 * major + minor, Properties.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> object:
        import torch

        return torch.device("cuda", 0)
