"""Triton, if it is installed. Otherwise the references in plain PyTorch run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = [
    "DTYPES",
    "INTERPRETED",
    "available",
    "jit",
    "power_of_two",
    "processors",
    "runs_on",
    "tl",
]

INTERPRETED = triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs the kernels in NumPy, on any device: for tests."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Formats that the kernels read and write; they compute in float32."""


def jit(function: Callable[..., None]) -> Any:
    """A Triton kernel; without Triton the plain function, which is never called."""
    return function if triton is None else triton.jit(function)


@cache
def available(device: torch.device) -> bool:
    """Whether the kernels run on this device: Triton is installed, and the GPU has bfloat16."""
    if triton is None or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def runs_on(x: Tensor) -> bool:
    """Whether a kernel rather than its reference handles `x`; constant under torch.compile."""
    return triton is not None and (x.is_cuda or INTERPRETED) and x.dtype in DTYPES


@cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 in the interpreter, so that programs loop."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
