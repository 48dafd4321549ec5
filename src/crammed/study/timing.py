"""How long the runs of a study take: training, what comes before and after it, and judging.

The runs that have finished in the study's folder tell how long the others will take. Until one has,
the parts of an update are measured on this device, once for each model size and optimizer, and so
is the time that a command takes to start, once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from crammed.config import RunConfig
from crammed.machine.workers import protected_children
from crammed.planning.gauge import Pace, training_pace
from crammed.planning.settling import device_of
from crammed.rules.sizing import expected_tokens, flops_per_token
from crammed.schedule import batch_rows
from crammed.study.result import Arm
from crammed.terminal.progress import Progress
from crammed.training.heldout import rows_on_the_way

STARTS = "import crammed.pipeline; from transformers import AutoModelForMaskedLM, pipeline"
"""What a run imports, which takes most of its time besides computing."""
STARTED = 2.0
"""Starting a run, opening its corpus, and exporting and checking its model take this many times as
long as `STARTS`."""
HELD_OUT = 2 / 3
"""The held-out loss of a row at two mask rates takes this share of the time that training on it
does, of which a forward pass is a third."""
STAGES = 200
"""Stages into which the growth of a batch is divided to count updates."""


class Timing:
    """Measures this device when asked to, and keeps what it has measured."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._paces: dict[tuple[object, ...], tuple[RunConfig, Pace]] = {}
        self._start: float | None = None

    def training(self, config: RunConfig, rows: int | None) -> float:
        """Seconds that a run trains.

        Args:
            rows: number of rows in the corpus, which may be used up before the budget; None if
                unknown.

        Raises:
            InputError: the device is missing, or too small for the model.
        """
        if config.budget.limit.kind == "time":
            return config.budget.limit.limit
        measured, pace = self._pace(config)
        share = flops_per_token(config) / flops_per_token(measured)
        return sum(n * _seconds(pace, each, share) for n, each in updates_of(config, rows))

    def rest(self, config: RunConfig, rows: int | None) -> float:
        """Seconds besides training: starting, held-out loss, exporting.

        Raises:
            InputError: as `training`.
        """
        measured, pace = next(iter(self._paces.values()), None) or self._pace(config)
        a_row = pace.row * _row_flops(config) / _row_flops(measured)
        count, every = config.data.heldout_rows, config.train.heldout_every
        if every is not None and "evaluate" not in config.budget.charge:
            count += round(1 / every) * rows_on_the_way(config, None, rows)
        return STARTED * self._starting() + HELD_OUT * count * a_row

    def _pace(self, config: RunConfig) -> tuple[RunConfig, Pace]:
        """A configuration of the same kind, and the pace measured with it."""
        model = config.model
        kind = (
            *(model.layers, model.passes, model.width, config.data.row_length),
            *(config.optim.name, config.compute.model_dump_json()),
        )
        if kind not in self._paces:
            with self._progress.task("measuring") as task:
                self._paces[kind] = config, (pace := training_pace(config, device_of(config)))
                took = 1000 * pace.seconds(config.batch.rows)
                task.update(1, f"{model.layers} x {model.width}: {took:.3g} ms an update")
        return self._paces[kind]

    def _starting(self) -> float:
        """Seconds that a new process takes to import what a run does."""
        if self._start is None:
            began = time.monotonic()
            with protected_children():
                subprocess.run([sys.executable, "-c", STARTS], capture_output=True, check=False)
            self._start = time.monotonic() - began
        return self._start


def _seconds(pace: Pace, rows: int, share: float) -> float:
    """Seconds of an update of this many rows, each with this multiple of the work measured."""
    return pace.seconds(rows) + (share - 1.0) * rows * pace.row


def _row_flops(config: RunConfig) -> float:
    return flops_per_token(config) * config.data.row_length


def updates_of(config: RunConfig, rows: int | None = None) -> Iterator[tuple[float, int]]:
    """Pairs of a number of updates and the rows of each, from the smallest batch to the largest.

    Args:
        rows: as for `Timing.training`.
    """
    batch, length = config.batch, config.data.row_length
    stages = STAGES if batch.ramp else 1
    tokens = expected_tokens(config, 1.0, rows)  # the speed counts only for budgets of time
    for stage in range(stages):
        each = batch_rows((stage + 0.5) / stages, batch.rows, batch.ramp, batch.ramp_quantum)
        paid = tokens / length / (batch.rows if config.budget.limit.kind == "updates" else each)
        yield paid / stages, each


@dataclass(frozen=True)
class Finished:
    """What the finished runs of a study say about the others.

    Attributes:
        trained: mean seconds that the runs of an arm trained, by arm.
        rest: median seconds that runs took besides training; None if no run has recorded it.
        judging: median seconds of each judge, by its name.
    """

    trained: Mapping[str, float]
    rest: float | None
    judging: Mapping[str, float]

    @classmethod
    def of(cls, arms: Mapping[str, Arm]) -> Finished:
        """Read from the arms of a study."""
        every = [run for entry in arms.values() for run in entry.runs.values()]
        # A run that was resumed has only the seconds of its last part.
        whole = [(run.whole_seconds or 0.0, run.seconds) for run in every]
        rest = [took - training for took, training in whole if took >= training]
        judging: dict[str, list[float]] = {}
        for run in every:
            for name, took in run.judging_seconds.items():
                judging.setdefault(name, []).append(took)
        trained = {arm: entry.values_of("seconds") for arm, entry in arms.items()}
        return cls(
            {arm: statistics.fmean(took) for arm, took in trained.items() if took},
            statistics.median(rest) if rest else None,
            {name: statistics.median(took) for name, took in judging.items()},
        )
