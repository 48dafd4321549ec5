"""How fast training is on this device, from about a second of its parts."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from crammed.budget import Clock, Work
from crammed.config import RunConfig
from crammed.machine.device import Device
from crammed.machine.lanes import compute_threads
from crammed.machine.speed import nominal_speed
from crammed.machine.waiting import core_waits, is_busy
from crammed.machine.workers import world_size
from crammed.planning.parts import FIRST_IDS, source_of
from crammed.rules.sizing import flops_per_token
from crammed.training.update.build import build
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep

_SECONDS = 0.5
_FEWEST_PIECES = 3
"""How long measuring takes at least, besides building the model and warming up, in seconds and in
pieces: with only two, it is unclear which was held up."""
_PIECE_SECONDS = 0.1
_FEWEST_TOKENS = 512
"""A piece is the gradients of as many rows as nominally take this long, but of no fewer tokens than
this, so that a CPU's matrix products are efficient."""
_PLAUSIBLE = 1 / 8
_UNEVEN = 2.0
"""A speed is in doubt below `_PLAUSIBLE` of the nominal one, or if the median piece took more than
`_UNEVEN` times as long as the fastest."""
_REST_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
_SHARE_OF_BUDGET = 0.05
"""A speed in doubt is measured again after a rest, for `_PATIENCE_SECONDS` in all, or this share of
a budget of time if that is less."""
_COMPILED = {"cpu": 1.3, "cuda": 2.6}
"""How much faster compiling makes training, by type of device: as measured on a CPU
(docs/performance.md), and on an H200 with 12 layers of width 512 (docs/gpu.md)."""


@dataclass(frozen=True)
class Measured:
    """How fast training is.

    Attributes:
        speed: FLOP/s.
        busy: whether other work held up each measurement.
    """

    speed: float
    busy: bool


def training_speed(
    config: RunConfig,
    device: Device,
    clock: Clock = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> Measured:
    """FLOP/s that training reaches with a configuration, from about a second of real updates.

    The gradients of some rows and the optimizer's part of an update are timed separately, a few
    times each, and the medians are added up to one update of `batch.rows`. So a large batch takes
    no longer to measure, and a brief interruption by other work does not count. Nothing is
    compiled, which would take longer than everything else: if the run will be compiled, the speed
    is multiplied by the usual gain. The rows are random, and neither they nor the model are kept.

    An interruption of a second may slow down all of that. So a speed in doubt is measured again a
    moment later, and the highest counts: other work makes a machine slower and nothing makes it
    faster, and one that is always slow is measured as slow each time.

    Threads that wait for a core are a reason for doubt, too (`crammed.machine.waiting`). If they
    still do when patience ends, a CPU is measured with one thread as well: beside other work,
    several threads wait for each other, and may be far slower than one.

    Raises:
        InputError: the model is too large for the device's memory.
    """
    config = config.grown()  # whose layers are all counted
    nominal, rows = _nominally(config, device)
    step = build(config, config.tokenizer.vocab_size, FIRST_IDS, replace(device, compile=False))
    least = step.lanes.count * _FEWEST_TOKENS // config.data.row_length
    rows = min(max(rows, least), config.batch.rows, step.lanes.count * step.microbatch_rows)
    ids = torch.from_numpy(source_of(config, None, config.tokenizer.vocab_size)(rows))
    pieces = partial(_pieces, step, ids, config, itertools.count(), clock)
    pieces(0.0, 1)  # to warm up

    def measure() -> tuple[Measured, bool]:
        """FLOP/s, and whether that is in doubt."""
        waits, began = core_waits(), clock()
        gradients, applied = zip(*pieces(_SECONDS, _FEWEST_PIECES), strict=True)
        middle = statistics.median(gradients)
        seconds = middle * config.batch.rows / rows + statistics.median(applied)
        speed = flops_per_token(config) * config.data.row_length * config.batch.rows / seconds
        busy = is_busy(waits, core_waits(), clock() - began)
        slow = speed < _PLAUSIBLE * nominal or middle > _UNEVEN * min(gradients)
        return Measured(speed, busy), busy or slow

    found, in_doubt = measure()
    until = clock() + _patience(config)
    while in_doubt and clock() + _REST_SECONDS <= until:
        rest(_REST_SECONDS)
        again, in_doubt = measure()
        found = Measured(max(found.speed, again.speed), found.busy and again.busy)
    if found.busy and device.torch.type == "cpu" and torch.get_num_threads() > 1:
        with compute_threads(1):
            found = replace(found, speed=max(found.speed, measure()[0].speed))
    if device.torch.type == "cuda":
        del step, pieces
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device.torch)
    gain = _COMPILED.get(device.torch.type, 1.0) if device.compile else 1.0
    return replace(found, speed=gain * found.speed)


def _nominally(config: RunConfig, device: Device) -> tuple[float, int]:
    """FLOP/s that this process should reach, and the rows whose gradients are worth timing."""
    several = world_size() if device.torch.type == "cuda" else 1
    nominal, length = nominal_speed(config.compute) / several, config.data.row_length
    wanted = _PIECE_SECONDS * nominal / (flops_per_token(config) * length)
    rows = round(max(wanted, _FEWEST_TOKENS / length))
    return nominal, max(1, min(rows, config.batch.rows))


def _patience(config: RunConfig) -> float:
    budget = config.budget.limit
    share = _SHARE_OF_BUDGET * budget.limit if budget.kind == "time" else math.inf
    return min(_PATIENCE_SECONDS, share)


def _pieces(
    step: TrainStep,
    ids: torch.Tensor,
    config: RunConfig,
    numbers: Iterator[int],
    clock: Clock,
    seconds: float,
    fewest: int,
) -> list[tuple[float, float]]:
    """The seconds of gradients and of the rest, again and again until they add up to `seconds`.

    Those of gradients are as if every update had the average number of passes.

    Args:
        numbers: of the updates, which decide whether they have a second pass.
        fewest: how many times at least.
    """

    def timed(work: Callable[[], object]) -> float:
        step.device.synchronize()
        began = clock()
        work()
        step.device.synchronize()
        return clock() - began

    took: list[tuple[float, float]] = []
    while len(took) < fewest or sum(map(sum, took)) < seconds:
        number = next(numbers)
        update = Update(number, 0, len(ids), 1.0, config.masking.rate, Work())
        gradients = timed(partial(step.gradients, ids, update))
        gradients *= config.passes_per_update() / config.passes_per_update(number)
        took.append((gradients, timed(partial(step.apply, 1.0))))
    return took
