"""How long the runs of a study take: training, what comes before and after it, and judging.

The runs that have finished in the study's folder tell how long the others will take. Until one has,
the speed of training is measured on this device, once for each model size and optimizer, and so is
the time that a command takes to start, once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from crammed.config import RunConfig
from crammed.machine.workers import protected_children
from crammed.planning.settling import Measuring, device_of
from crammed.rules.sizing import expected_tokens, flops_per_token
from crammed.study.result import Arm, means_of
from crammed.terminal.progress import Progress
from crammed.training.heldout_meter import rows_on_the_way

STARTS = "import crammed.pipeline; from transformers import AutoModelForMaskedLM, pipeline"
"""What a run imports, which takes most of its time besides computing."""
STARTED = 2.0
"""Starting a run, opening its corpus, and exporting and checking its model take this many times as
long as `STARTS`."""
HELD_OUT = 2 / 3
"""The held-out loss of a row at two mask rates takes this share of the time that training on it
does, of which a forward pass is a third."""


class Timing:
    """Measures this device when asked to, and keeps what it has measured."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._speeds: dict[tuple[object, ...], float] = {}
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
        tokens = expected_tokens(config, 1.0, rows)  # the speed counts only for budgets of time
        return tokens * flops_per_token(config) / self._speed(config)

    def rest(self, config: RunConfig, rows: int | None) -> float:
        """Seconds besides training: starting, held-out loss, exporting.

        Raises:
            InputError: as `training`.
        """
        speed = next(iter(self._speeds.values()), None) or self._speed(config)
        count, every = config.data.heldout_rows, config.train.heldout_every
        if every is not None and "evaluate" not in config.budget.charge:
            count += round(1 / every) * rows_on_the_way(config, None, rows)
        a_row = config.data.row_length * flops_per_token(config) / speed
        return STARTED * self._starting() + HELD_OUT * count * a_row

    def _speed(self, config: RunConfig) -> float:
        model = config.model
        kind = (
            *(model.layers, model.passes, model.width, config.data.row_length),
            *(config.optim.kind, config.compute.model_dump_json()),
        )
        if kind not in self._speeds:
            # An estimate need not say that the machine is busy.
            measure = Measuring(device_of(config), self._progress, busy=True)
            self._speeds[kind] = measure(config)
        return self._speeds[kind]

    def _starting(self) -> float:
        if self._start is None:
            began = time.monotonic()
            with protected_children():
                subprocess.run([sys.executable, "-c", STARTS], capture_output=True, check=False)
            self._start = time.monotonic() - began
        return self._start


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
        every = [run for entry in arms.values() for run in entry.runs.values()]
        # A run that was resumed has only the seconds of its last part.
        whole = [(run.whole_seconds or 0.0, run.seconds) for run in every]
        rest = [took - training for took, training in whole if took >= training]
        judging: dict[str, list[float]] = {}
        for run in every:
            for name, took in run.judging_seconds.items():
                judging.setdefault(name, []).append(took)
        return cls(
            means_of(arms, "seconds"),
            statistics.median(rest) if rest else None,
            {name: statistics.median(took) for name, took in judging.items()},
        )
