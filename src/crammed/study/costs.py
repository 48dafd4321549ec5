"""What a study costs before it begins: runs, time, core-hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crammed.budget import Budget, format_seconds
from crammed.config import RunConfig
from crammed.machine.device import choose_kind
from crammed.planning.settling import device_of, measuring
from crammed.quantity import counted
from crammed.rules.recipe import load_config
from crammed.rules.sizing import (
    expected_tokens,
    flops_per_token,
    in_vocabulary,
    vocabulary,
    with_values,
)
from crammed.study.arms import Study, merged
from crammed.study.budgets import split
from crammed.study.corpora import ArmCorpora, of_training
from crammed.study.folder import finished_runs
from crammed.study.places import threads_of
from crammed.terminal.progress import Progress


@dataclass(frozen=True)
class Cost:
    """What is left to train, without preparing text and without judges.

    Attributes:
        arms: of the study, with each of its budgets.
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

    def __add__(self, other: Cost) -> Cost:
        """Of two studies, one after the other."""
        return Cost(
            self.arms + other.arms,
            self.runs + other.runs,
            self.left + other.left,
            self.seconds + other.seconds,
            self.jobs,
            self.cores,
        )

    @property
    def core_hours(self) -> float:
        """Hours of CPU cores; 0 on a GPU."""
        return self.seconds * self.cores / 3600.0

    def values(self) -> dict[str, Any]:
        """As ``--json`` prints them."""
        return {**asdict(self), "core_hours": self.core_hours}

    def __str__(self) -> str:
        runs = f"{counted(self.arms, 'arm')}, {self.left:,} of {counted(self.runs, 'run')} to go"
        took = format_seconds(round(self.seconds / min(self.jobs, max(1, self.left))))
        paid = f", {self.core_hours:.1f} core-hours" if self.cores else ""
        return f"{runs}, about {took}{paid}"


def cost_of(
    study: Study,
    corpora: ArmCorpora,
    budget: Budget,
    seeds: int,
    out: Path,
    jobs: int,
    progress: Progress,
) -> Cost:
    """The cost of what is left of a study.

    Budgets of time cost what they say. For others the device is measured with the baseline, as
    `crammed pretrain` measures it, if anything is left, and the other arms are taken to be as fast.

    Args:
        study: as `load_study` returns it.
        corpora: of the study, also before they are prepared.
        out: folder of the study; it need not exist.

    Raises:
        InputError: an arm is not valid, or the folder is damaged.
    """
    threads = threads_of(jobs)
    configs = {arm: _config(study, arm, corpora, budget, threads) for arm in study.arms}
    base = configs[study.baseline]
    left = list(_left(configs, seeds, out))
    speed = 1.0
    if left and budget.kind != "time":
        speed = measuring(device_of(base), progress)(base)
    seconds = sum(seconds_of(config, speed, corpora.rows(config.corpus)) for config in left)
    cores = (base.compute.threads or threads) if choose_kind(base.compute, []) == "cpu" else 0
    return Cost(len(configs), len(configs) * seeds, len(left), seconds, jobs, cores)


def seconds_of(config: RunConfig, speed: float, rows: int | None = None) -> float:
    """How long a run trains; at most so long, where the length of the text is not known.

    Args:
        speed: FLOP/s of the device.
        rows: number of rows in the corpus, whose length may end the run.
    """
    budget = config.budget.limit
    if budget.kind == "time":
        return budget.limit
    return expected_tokens(config, speed, rows) * flops_per_token(config) / speed


def _config(study: Study, arm: str, corpora: ArmCorpora, budget: Budget, threads: int) -> RunConfig:
    words, limit = split(study.words(arm), budget)
    fixed = corpora.fixed(words, limit)
    recipe, *overrides = of_training(merged((f"compute.threads={threads}", *words)))
    config = load_config(recipe, overrides, fixed)
    if "vocab_size" not in fixed["tokenizer"]:  # which follows once text is read
        return with_values(config, {"tokenizer.vocab_size": vocabulary(config.model.width)})
    return in_vocabulary(config, corpora.vocabulary(config.corpus))


def _left(configs: dict[str, RunConfig], seeds: int, out: Path) -> Iterator[RunConfig]:
    finished = finished_runs(out)
    for arm, config in configs.items():
        done = finished.get(arm, {"runs": {}})["runs"]
        for seed in range(seeds):
            if str(seed) not in done:
                yield config
