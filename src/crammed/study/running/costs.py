"""What a study costs before it begins: runs, time, core-hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crammed.budget import Budget, format_seconds
from crammed.config import RunConfig
from crammed.machine.device import choose_kind
from crammed.quantity import counted
from crammed.rules.sizing import in_vocabulary, vocabulary, with_values
from crammed.study.running.folder import begun_arms, config_of, left_runs
from crammed.study.running.judges import Judge
from crammed.study.running.places import threads_of
from crammed.study.running.timing import Finished, Timing
from crammed.study.spec.arms import Study
from crammed.study.spec.corpora import ArmCorpora


@dataclass(frozen=True)
class Cost:
    """The cost of the training and judging that is left; preparing text is not counted.

    Attributes:
        arms: number of arms, each counted once per budget.
        runs: number of runs, over all arms and seeds.
        left: runs that have not finished, or that a judge has not scored.
        seconds: what these take, one after the other, from their start to their last score.
        jobs: how many of them train at a time; None if that is unknown, as on a cluster.
        cores: CPU cores of each run; 0 on a GPU.
        uncounted: judges that have scored no run yet, so that their time is unknown.
    """

    arms: int
    runs: int
    left: int
    seconds: float
    jobs: int | None
    cores: int
    uncounted: tuple[str, ...] = ()

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.arms + other.arms,
            self.runs + other.runs,
            self.left + other.left,
            self.seconds + other.seconds,
            self.jobs,
            self.cores,
            tuple(dict.fromkeys((*self.uncounted, *other.uncounted))),
        )

    @property
    def core_hours(self) -> float:
        return self.seconds * self.cores / 3600.0

    def values(self) -> dict[str, Any]:
        """As ``--json`` prints them."""
        return {**asdict(self), "core_hours": self.core_hours}

    def __str__(self) -> str:
        runs = f"{counted(self.arms, 'arm')}, {self.left:,} of {counted(self.runs, 'run')} to go"
        at_a_time = min(self.jobs or 1, max(1, self.left))
        took = f"about {format_seconds(round(self.seconds / at_a_time))}"
        if self.jobs is None:
            took += " of runs, as many at a time as the cluster holds"
        paid = f", {self.core_hours:.1f} core-hours" if self.cores else ""
        more = f", and judging by {', '.join(self.uncounted)}" if self.uncounted else ""
        return f"{runs}, {took}{paid}{more}"


def cost_of(
    study: Study,
    corpora: ArmCorpora,
    budget: Budget,
    seeds: int,
    out: Path,
    jobs: int,
    timing: Timing,
    judges: Sequence[Judge] = (),
) -> Cost:
    """The cost of what is left of a study.

    The time of training is that of other seeds of the arm; before there is one, a budget of time
    gives it, or the device is measured. The times of judging, and of all else besides training, are
    those of the runs in this folder; before one has finished, judging is not counted, and the rest
    is measured.

    Args:
        study: as `load_study` returns it.
        corpora: of the study; they need not be prepared.
        out: folder of the study; it need not exist.

    Raises:
        InputError: an arm is not valid, or the folder is damaged.
    """
    threads, arms = threads_of(jobs), begun_arms(study, seeds, out, judges)
    configs = {arm: _counted(study, arm, corpora, budget, threads) for arm in study.arms}
    base, finished = configs[study.baseline], Finished.of(arms)
    left = left_runs(study, seeds, arms, out, judges)
    seconds, uncounted = 0.0, dict.fromkeys(judge.name for run in left for judge in run.judges)
    for run in left:
        config, rows = configs[run.arm], corpora.rows(configs[run.arm].corpus)
        if run.before is None:
            known = finished.trained.get(run.arm)
            seconds += timing.training(config, rows) if known is None else known
            seconds += timing.rest(config, rows) if finished.rest is None else finished.rest
        seconds += sum(finished.judging.get(judge.name, 0.0) for judge in run.judges)
    cores = (base.compute.threads or threads) if choose_kind(base.compute, []) == "cpu" else 0
    unknown = tuple(each for each in uncounted if each not in finished.judging)
    return Cost(len(configs), len(configs) * seeds, len(left), seconds, jobs, cores, unknown)


def _counted(
    study: Study, arm: str, corpora: ArmCorpora, budget: Budget, threads: int
) -> RunConfig:
    """The configuration of an arm with the vocabulary that its corpus has or will have."""
    config, fixed = config_of(study, arm, corpora, budget, threads), corpora.fixed
    if "vocab_size" not in fixed(study.words(arm), budget)["tokenizer"]:  # it follows from the text
        return with_values(config, {"tokenizer.vocab_size": vocabulary(config.model.width)})
    return in_vocabulary(config, corpora.vocabulary(config.corpus))
