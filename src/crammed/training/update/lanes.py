"""Decides among how many lanes a run divides its updates (`crammed.machine.lanes`)."""

from __future__ import annotations

from pathlib import Path

import torch

from crammed.config import RunConfig
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.machine.workers import world_size
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_events
from crammed.terminal.progress import Progress

LEAST_TOKENS = 256
"""With fewer tokens in an update, a lane spends too much on what does not depend on them. With as
many, lanes are several times as fast as PyTorch's threads on a busy machine, and perhaps a little
slower on a quiet one (`records/LOG.md`)."""
MOST_WIDTH = 256
"""Wider models keep PyTorch's threads: lanes were not measured there."""
MOST = 4096
"""Most lanes that can be asked for (`ComputeConfig.lanes`)."""


def lanes_of(config: RunConfig, device: Device) -> int:
    """Among how many lanes a run that begins here divides its updates.

    Raises:
        InputError: the configuration asks for several where there can be only one.
    """
    asked = config.compute.lanes
    if device.torch.type != "cpu":
        if asked not in (None, 1):
            raise InputError(f"compute.lanes={asked} needs a CPU: leave it out")
        return 1
    if config.adapts is not None:  # models of other libraries compute in one thread at a time
        return 1
    if any(config.model.dropouts()):  # the lanes would draw from one generator, in any order
        if asked not in (None, 1):
            raise InputError(
                f"compute.lanes={asked} needs model.dropout=0 and no other dropout or layer drop: "
                "leave one of them out"
            )
        return 1
    if asked is not None:
        return asked
    if config.model.width > MOST_WIDTH or device.compile or world_size() > 1:
        return 1
    tokens = config.batch.rows * config.data.row_length
    return max(1, min(torch.get_num_threads(), tokens // LEAST_TOKENS))


def with_lanes(config: RunConfig, run: RunDir, device: Device, progress: Progress) -> RunConfig:
    """The configuration of a run, with the lanes that it began with or begins with now.

    Their number decides in which parts gradients are summed, and so the last bits of the weights.
    It is recorded, so that a run resumes with the same on another machine.

    Raises:
        InputError: as `lanes_of`, or the events of the run are damaged.
    """
    before = lanes_before(run.path)
    count = lanes_of(config, device)
    alone = device.torch.type == "cpu" and world_size() == 1  # a GPU or processes have none
    if before is not None and config.compute.lanes is None and alone:
        count = before
    note_parts(run, "lanes", count, before, progress)
    compute = config.compute.model_copy(update={"lanes": count})
    return config.model_copy(update={"compute": compute})


def note_parts(run: RunDir, kind: str, count: int, before: int | None, progress: Progress) -> None:
    """Record in how many lanes or processes a run trains, and say so if it was another number.

    Args:
        before: the number so far; None if none was recorded.
    """
    if count == before:
        return
    run.event(kind, count=count)
    if before is not None:
        progress.line(
            f"{kind}  {count} instead of {before}: gradients are summed in different parts, so the "
            "weights equal those of an undisturbed run except for rounding"
        )


def lanes_before(run: Path) -> int | None:
    """Among how many lanes the run in this folder has divided its updates; None if it is new.

    Raises:
        InputError: its events are damaged.
    """
    counts = [e["count"] for e in read_events(run, lanes=("count",)) if e["event"] == "lanes"]
    if counts:
        if not 1 <= counts[-1] <= MOST:
            raise InputError(
                f"{run / 'events.jsonl'} is damaged: {counts[-1]} lanes; restore it from a copy"
            )
        return int(counts[-1])
    return 1 if (run / "metrics.jsonl").exists() else None  # older versions had no lanes
