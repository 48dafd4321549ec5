"""How fast training is on this device, from about a second of its parts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from crammed.budget import Clock, Work
from crammed.config import RunConfig
from crammed.machine.device import Device
from crammed.machine.speed import nominal_speed
from crammed.machine.workers import world_size
from crammed.planning.measure import FIRST_IDS
from crammed.rules.sizing import flops_per_token
from crammed.training.build import build
from crammed.training.plan import Update
from crammed.training.step import TrainStep

_SECONDS = 0.5
_FEWEST_PIECES = 3
"""How long measuring takes at least, besides building the model and warming up, in seconds and in
pieces: of two, nobody could say which was held up."""
_PIECE_SECONDS = 0.1
_FEWEST_TOKENS = 512
"""Gradients are computed of as many rows as nominally take this long, and of no fewer than these
tokens, which keep a CPU's products efficient."""
_PLAUSIBLE = 1 / 8
_UNEVEN = 2.0
"""A speed is in doubt below this share of the nominal one, or if the gradients of the middle piece
took so many times as long as those of the fastest."""
_REST_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0
_SHARE_OF_BUDGET = 0.05
"""While it is in doubt, it is measured again after such a rest, which must fit into this share of a
budget of time, and into these seconds."""
_COMPILED = 1.3
"""How much faster compiling makes training, as measured on a CPU (docs/performance.md)."""


def training_speed(
    config: RunConfig,
    device: Device,
    clock: Clock = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> float:
    """FLOP/s that training reaches with a configuration, from about a second of real updates.

    The gradients of some rows and the optimizer's part of an update are timed apart, a few times
    each, and the medians are added up to one update of `batch.rows`. So a large batch takes no
    longer to measure, and what else the machine does for a moment does not count. Nothing is
    compiled, which would take longer than all the rest: where the run will be, the speed is raised
    by what compiling gives. The rows are random, and neither they nor the model are kept.

    What holds the machine for a second may slow all of that down. So a speed in doubt is measured
    again a moment later, and the highest counts: other work makes a machine slower and nothing
    makes it faster, and one that is slow throughout is found to be slow each time.

    Raises:
        InputError: the model is too large for the device's memory.
    """
    vocab_size, length = config.tokenizer.vocab_size, config.data.row_length
    step = build(config, vocab_size, FIRST_IDS, replace(device, compile=False))
    a_row = flops_per_token(config) * length
    several = world_size() if device.torch.type == "cuda" else 1
    nominal = nominal_speed(config.compute) / several  # of this process alone
    wanted = max(_PIECE_SECONDS * nominal / a_row, _FEWEST_TOKENS / length)
    rows = max(1, min(round(wanted), step.microbatch_rows, config.batch.rows))
    least, draw = max(FIRST_IDS.ids) + 1, np.random.default_rng(0)
    ids = torch.from_numpy(draw.integers(least, vocab_size, (rows, length)))
    parts = _Parts(step, ids, Update(0, 0, rows, 1.0, config.masking.rate, Work()), device, clock)
    parts.time(0.0, 1)  # which warms up

    def measure() -> tuple[float, bool]:
        """FLOP/s, and whether that is in doubt."""
        gradients, applied = zip(*parts.time(_SECONDS, _FEWEST_PIECES), strict=True)
        middle = statistics.median(gradients)
        seconds = middle * config.batch.rows / rows + statistics.median(applied)
        speed = config.batch.rows * a_row / seconds
        return speed, speed < _PLAUSIBLE * nominal or middle > _UNEVEN * min(gradients)

    speed, in_doubt = measure()
    until = clock() + _patience(config)
    while in_doubt and clock() + _REST_SECONDS <= until:
        rest(_REST_SECONDS)
        again, in_doubt = measure()
        speed = max(speed, again)
    if device.torch.type == "cuda":
        del step, parts
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device.torch)
    return speed * (_COMPILED if device.compile else 1.0)


def _patience(config: RunConfig) -> float:
    """For how many seconds a speed in doubt is measured again."""
    budget = config.budget.limit
    share = _SHARE_OF_BUDGET * budget.limit if budget.kind == "time" else math.inf
    return min(_PATIENCE_SECONDS, share)


@dataclass(frozen=True)
class _Parts:
    """The two parts of an update, one after the other: gradients of these rows, and the rest."""

    step: TrainStep
    ids: torch.Tensor
    update: Update
    device: Device
    clock: Clock

    def time(self, seconds: float, fewest: int) -> list[tuple[float, float]]:
        """The seconds that each took, time after time, until they add up to `seconds`."""
        took: list[tuple[float, float]] = []
        while len(took) < fewest or sum(map(sum, took)) < seconds:
            gradients = self._timed(lambda: self.step.gradients(self.ids, self.update))
            took.append((gradients, self._timed(lambda: self.step.apply(1.0))))
        return took

    def _timed(self, work: Callable[[], object]) -> float:
        self.device.synchronize()
        began = self.clock()
        work()
        self.device.synchronize()
        return self.clock() - began
