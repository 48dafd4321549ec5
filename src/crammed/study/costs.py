"""What a study costs before it begins: runs, time, core-hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crammed.budget import format_seconds
from crammed.config import RunConfig
from crammed.sizing import expected_tokens, flops_per_token


@dataclass(frozen=True)
class Cost:
    """What is left to train, without preparing text and without judges.

    Attributes:
        arms: of the study.
        runs: of all arms and seeds.
        left: runs that have not finished.
        seconds: what these take, one after the other.
        jobs: how many of them train at a time.
        cores: CPU cores of each run; 0 on a GPU.
    """

    arms: int
    runs: int
    left: int
    seconds: float
    jobs: int
    cores: int

    @property
    def wall(self) -> float:
        """Seconds until all have finished."""
        return self.seconds / min(self.jobs, max(1, self.left))

    @property
    def core_hours(self) -> float:
        """Hours of CPU cores; 0 on a GPU."""
        return self.seconds * self.cores / 3600.0

    def __str__(self) -> str:
        paid = f", {self.core_hours:.1f} core-hours" if self.cores else ""
        runs = f"{self.arms} arms, {self.left} of {self.runs} runs to go"
        return f"{runs}, about {format_seconds(self.wall)}{paid}"


def seconds_of(config: RunConfig, speed: float) -> float:
    """How long a run trains.

    Args:
        speed: FLOP/s of the device.
    """
    budget = config.budget.limit
    if budget.kind == "time":
        return budget.limit
    if budget.kind == "flops":
        return budget.limit / speed
    return expected_tokens(config, speed) * flops_per_token(config) / speed


def cost_of(
    left: Iterable[RunConfig], arms: int, runs: int, jobs: int, cores: int, speed: float
) -> Cost:
    """The cost of the runs with these configurations, one for each that is left.

    Args:
        speed: FLOP/s that a run reaches.
    """
    seconds = [seconds_of(config, speed) for config in left]
    return Cost(arms, runs, len(seconds), sum(seconds), jobs, cores)


def total(costs: Iterable[Cost]) -> Cost:
    """Of studies that run one after the other."""
    each = list(costs)
    return Cost(
        sum(cost.arms for cost in each),
        sum(cost.runs for cost in each),
        sum(cost.left for cost in each),
        sum(cost.seconds for cost in each),
        max(cost.jobs for cost in each),
        each[0].cores,
    )
