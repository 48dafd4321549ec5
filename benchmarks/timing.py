"""How long calls take on a device, and how fast the device copies."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

WARM = 3
CACHE_BYTES = 256 * 2**20
"""More than the last-level cache of any device that this runs on."""
_BATCH_SECONDS = 2e-3


def median_seconds(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int
) -> float:
    """Median seconds of a call. The calls take turns, so that their operands leave the cache.

    On a GPU the device's own events are the clock, around enough calls in a row to hide the time of
    launching them.
    """
    turns = itertools.cycle(calls)
    for _ in range(max(WARM, len(calls))):
        next(turns)()
    if device.type != "cuda":
        return statistics.median(_host_seconds(next(turns)) for _ in range(repeats))
    torch.cuda.synchronize(device)
    one = _device_seconds(turns, 1)
    batch = min(100, max(1, round(_BATCH_SECONDS / max(one, 1e-7))))
    return statistics.median(_device_seconds(turns, batch) for _ in range(repeats))


def _host_seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _device_seconds(turns: itertools.cycle[Callable[[], object]], batch: int) -> float:
    """Seconds per call, for `batch` calls in a row, by the device's events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(batch):
        next(turns)()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3 / batch


def copies(operand_bytes: int) -> int:
    """How many sets of operands are needed to fill the cache; at most 8."""
    return max(1, min(8, -(-CACHE_BYTES // max(1, operand_bytes))))


def copy_bandwidth(device: torch.device, repeats: int) -> float:
    """Bytes per second, read plus written, of a copy far larger than the cache."""
    size = 2**30 if device.type == "cuda" else CACHE_BYTES
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds([lambda: target.copy_(source)], device, repeats)
