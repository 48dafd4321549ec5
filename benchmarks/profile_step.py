"""Which kernels take the time of a pretraining update.

    python benchmarks/profile_step.py [RECIPE] [key.path=value ...] [--updates 3] [--top 40]
        [--out RESULT.json]

Forward and backward of one microbatch and the optimizer step after it are profiled separately: all
kernels of the step belong to the optimizer. The others are sorted by name into the parts that a
step on paper has, so that both can be compared. On a CPU, operators take the place of kernels.
`idle_seconds` is the time, measured without the profiler, in which no kernel ran.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from torch.profiler import ProfilerActivity, profile

from common import Json, Training, config_of, described, finish, run, seconds_of, summary
from crammed.errors import InputError
from crammed.machine.device import Device, choose_device
from kernel_parts import part_of

WARM = 3
GROUPS = (
    # The first match counts; other kernels belong to the parts of `kernel_parts`, and after those
    # to `LEFT`. Names of attention kernels contain words of products as well, and the compiler
    # names a kernel after all its operators, even those that it only feeds.
    ("attention", r"^(?!triton_).*(flash|fmha|attention|sdpa|mha_|cudnn::fusion)"),
    ("loss", r"^aten::(amax|exp_)$"),
    (
        "products",
        r"^triton_tem_|^(?!triton_).*(gemm|nvjet|cutlass|cublas|xmma|splitk|scaled_mm)"
        r"|^aten::(addmm|b?mm|linear)$",
    ),
    ("weights", r"multi_tensor_apply"),
    ("copies", r"memcpy|memset|^aten::(copy_|_to_copy|clone|contiguous)$"),
)
LEFT = ("other elementwise", r"^triton_|^aten::|elementwise|reduce_kernel")


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    updates: Annotated[int, typer.Option(min=1)] = 3,
    top: Annotated[int, typer.Option(help="Kernels to list.")] = 40,
    out: Path | None = None,
) -> None:
    config = config_of(words)
    device = choose_device(config.compute)
    training = Training(config, device)
    steps = [partial(training.update, number) for number in range(WARM + updates)]
    took = [seconds_of(device, step) for step in steps]
    kernels: list[Json] = []
    for number in range(updates):
        kernels += _kernels(device, partial(training.gradients, number), None)
        kernels += _kernels(device, partial(training.step.apply, 1.0), "optimizer")
    together = _together(kernels, updates)
    busy = sum(kernel["seconds"] for kernel in together)
    whole = summary(took[WARM:])["seconds"]
    groups: defaultdict[str, float] = defaultdict(float)
    for kernel in together:
        groups[kernel["group"]] += kernel["seconds"]
    result = described("profile_step", config, words, device)
    result |= {
        "rows": training.rows,
        "seconds": whole,
        "kernel_seconds": busy,
        "idle_seconds": max(0.0, whole - busy),
        "launches": sum(kernel["launches"] for kernel in together),
        "groups": dict(sorted(groups.items(), key=lambda item: -item[1])),
        "top": together[:top],
    }
    finish(result, out)


def group_of(kernel: str) -> str:
    found = (group for group, words in GROUPS if re.search(words, kernel, re.IGNORECASE))
    last = LEFT[0] if re.search(LEFT[1], kernel, re.IGNORECASE) else "other"
    return next(found, part_of(kernel) or last)


def _kernels(device: Device, do: Callable[[], object], group: str | None) -> list[Json]:
    """The kernels that a call launches, all in `group`, or each in the group its name tells."""
    on_gpu = device.torch.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(activities=activities) as seen:
        do()
        device.synchronize()
    found = []
    for event in seen.key_averages():
        name, seconds = str(event.key), _seconds(event, on_gpu)
        if seconds > 0.0:
            kernel: Json = {"kernel": name, "group": group or group_of(name)}
            found.append({**kernel, "seconds": seconds, "launches": int(event.count)})
    if not found:
        raise InputError(
            "the profiler sees no kernels, because the driver does not allow it to: run as root, "
            "or set NVreg_RestrictProfilingToAdminUsers=0"
        )
    return found


def _seconds(event: Any, on_gpu: bool) -> float:
    """The event's own time; 0 for events that only group others."""
    if not on_gpu:
        return float(event.self_cpu_time_total) / 1e6
    if event.device_type.name != "CUDA" or getattr(event, "is_user_annotation", False):
        return 0.0
    return float(event.self_device_time_total) / 1e6


def _together(kernels: list[Json], updates: int) -> list[Json]:
    """Kernels summed by name and group, per update, the longest first."""
    total: dict[tuple[str, str], Json] = {}
    for kernel in kernels:
        key = (kernel["group"], kernel["kernel"])
        entry = total.setdefault(key, {**kernel, "seconds": 0.0, "launches": 0})
        entry["seconds"] += kernel["seconds"] / updates
        entry["launches"] += kernel["launches"]
    for entry in total.values():
        entry["launches"] = round(entry["launches"] / updates)
    return sorted(total.values(), key=lambda entry: -entry["seconds"])


if __name__ == "__main__":
    run(main)
