"""The nominal speed of a device, for use where its speed cannot be measured.

It decides what `crammed recipes` shows, the tables of sizes in the documentation, and which size is
measured first. It also decides whether compiling pays off where a measurement could change the bits
that a run computes: if its budget is not a time, or if its text may end before its time does.
"""

from __future__ import annotations

from crammed.config import ComputeConfig

CORE = 80e9
MULTIPROCESSOR = 0.5e12
APPLE = 2e12
"""Nominal FLOP/s of training on a CPU core, on a CUDA multiprocessor and on an Apple GPU."""
SHARE_OF_PEAK = 0.4
"""Share of a GPU's peak that training nominally reaches, if the peak is known. An H200 reached 0.33
in 12 layers of width 512 (records/2026-11-26-gpu-sprint) and 0.45 in 16 of width 768 (docs/gpu.md).
"""


def nominal_speed(compute: ComputeConfig) -> float:
    """FLOP/s that training is assumed to reach on the device that `compute` chooses.

    Processes that train together are counted with all of their GPUs.

    Raises:
        InputError: this machine has no such device.
    """
    import torch

    from crammed.machine.device import choose_kind, known_peak
    from crammed.machine.workers import cores, world_size

    kind = choose_kind(compute, [])
    if kind == "cpu":
        return CORE * (compute.threads or cores())
    if kind == "mps":
        return APPLE
    peak = known_peak(torch.cuda.get_device_name())
    if peak is not None:
        return world_size() * SHARE_OF_PEAK * peak
    return world_size() * MULTIPROCESSOR * torch.cuda.get_device_properties().multi_processor_count
