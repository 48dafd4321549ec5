"""What ``study.json`` holds, whichever version wrote it; it is checked when it is read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from crammed.files.folders import inside
from crammed.files.writing import read_json
from crammed.runs.summary import Amount, Count, Part, checked
from crammed.study.spec.budgets import BudgetText, at

RESULT = "study.json"
RATES = ("loss@0.15", "loss@0.25")
LOSSES = ("loss@", "document_loss@", "bits_per_character@")
BITS, UNTRAINED = "bits_", "untrained."
"""How measures without a table begin: loss in other units, and scores of untrained twins."""
_TOO_LARGE = 1e30
Score = Annotated[float, Field(gt=-_TOO_LARGE, lt=_TOO_LARGE)]


def is_loss(measure: str) -> bool:
    """Whether the measure is a loss; otherwise it is a score, and higher is better."""
    return measure.startswith(LOSSES)


class Run(Part):
    """What a run measured and cost, or why it failed.

    Held-out losses have their names as keys, such as ``loss@0.15``.

    Attributes:
        seconds: charged.
        ended_at: the share of its budget at which it had read its text as often as it may; None if
            it did not.
        whole_seconds: of its command from start to end, or of the last part if it was resumed.
        judging_seconds: of each judge's command, by its name.
        scores: in percent, by name (`judges`).
        partial: names of the scores that are of part of the official data.
        unscored: why scores are missing.
    """

    failed: str | None = None
    tokens: Count = 0
    updates: Count | None = None
    parameters: Count | None = None
    exaflop: Amount | None = None
    memory_bytes: Count | None = None
    joules: Amount | None = None
    seconds: Amount = 0.0
    ended_at: Amount | None = None
    whole_seconds: Amount | None = None
    judging_seconds: dict[str, Amount] = Field(default_factory=dict)
    scores: dict[str, Score] = Field(default_factory=dict)
    partial: list[str] = Field(default_factory=list)
    unscored: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        own = self.model_extra or {}
        if self.failed is None and not {"tokens", "seconds"} <= self.model_fields_set:
            raise ValueError("a run has `tokens` and `seconds`, or says why it `failed`")
        for name in filter(is_loss, own):
            if not isinstance(own[name], int | float) or not abs(own[name]) < _TOO_LARGE:
                raise ValueError(f"{name} must be a number")
        return self

    def value(self, measure: str) -> float | None:
        """A loss, a score or a cost; None if the run does not have it."""
        found = {**dict(self), **self.scores}.get(measure) if self.failed is None else None
        return None if found is None else float(found)

    def without(self, name: str) -> Run:
        return Run.model_validate({k: v for k, v in self.values().items() if k != name})


def is_own(suite: str) -> bool:
    """Whether scores by a suite of this name would be taken for what a study measures itself."""
    hidden = f"{suite}.".startswith((BITS, UNTRAINED))
    return hidden or is_loss(f"{suite}@") or suite in Run.model_fields


class Arm(Part):
    """An arm: its recipe and overrides, and its runs by their seed.

    Attributes:
        corpus: hash of its corpus, in a study that prepares its corpora.
    """

    words: list[str]
    corpus: str | None = None
    runs: dict[Annotated[str, Field(pattern=r"^\d+$")], Run]

    def values_of(self, measure: str) -> list[float]:
        return [value for run in self.runs.values() if (value := run.value(measure)) is not None]


def means_of(arms: Mapping[str, Arm], measure: str) -> dict[str, float]:
    """Means over the seeds of the arms that have this value."""
    found = {arm: each.values_of(measure) for arm, each in arms.items()}
    return {arm: statistics.fmean(values) for arm, values in found.items() if values}


class Environment(Part):
    """The versions and the machine that a study began with.

    Attributes:
        later: other commits with which runs were trained after that.
    """

    cores: int | None
    commit: str | None = None
    later: list[str] = Field(default_factory=list)
    source: str | None = None
    started: str = ""

    @property
    def commits(self) -> str:
        """``3f2a``, or ``3f2a, later 9b1c``."""
        return ", later ".join([str(self.commit), *self.later])

    def with_later(self, commit: str | None) -> Environment:
        """The same, with another commit with which runs are trained."""
        if commit in (None, self.commit, *self.later):
            return self
        return self.model_copy(update={"later": [*self.later, commit]})


class UpdateTime(Part):
    """How long an arm's updates take, in a study whose budget is one of time (`seconds`).

    Attributes:
        busy: whether other work slowed the measurement.
    """

    seconds_per_update: Annotated[float, Field(gt=0.0, lt=_TOO_LARGE)]
    busy: bool = False


class StudyResult(Part):
    """The result of a study.

    Attributes:
        corpus: hash of the base's corpus.
        unigram: unigram cross-entropy of the baseline's corpus; older studies have none.
        budgets: those of the arms by label, if there are several.
        chosen: what followed from the budget, by arm (`Chooser`).
        paces: how long updates take, by arm, where seconds became FLOPs.
        corpora: those that the study prepared, by hash.
        judges: a hash of the data of each suite that scored runs.
        protocols: a hash of each fine-tuning protocol that a judge names.
    """

    environment: Environment | None = None
    jobs: Count | None = None
    corpus: str = ""
    unigram: Amount | None = None
    budget: BudgetText = ""
    budgets: dict[str, BudgetText] = Field(default_factory=dict)
    baseline: str = ""
    description: str = ""
    chosen: dict[str, dict[str, Any]] = Field(default_factory=dict)
    paces: dict[str, UpdateTime] = Field(default_factory=dict)
    corpora: dict[str, dict[str, Any]] = Field(default_factory=dict)
    judges: dict[str, str] = Field(default_factory=dict)
    protocols: dict[str, str | None] = Field(default_factory=dict)
    arms: dict[str, Arm]

    @model_validator(mode="after")
    def _has_its_baseline(self) -> Self:
        base = self.baseline.rpartition("@")[0]
        wanted = [at(base, label) for label in self.budgets] or [self.baseline]
        if self.baseline and self.arms and (missing := [w for w in wanted if w not in self.arms]):
            raise ValueError(f"the baseline {missing[0]} is not one of its arms")
        return self

    def parts(self) -> dict[str, StudyResult]:
        """The result for each budget, by label, with the arms under their own names.

        A study without budgets of its own is one result with an empty label.
        """
        parts = {}
        for label, limit in self.budgets.items():
            end = at("", label)
            own = {arm.removesuffix(end): e for arm, e in self.arms.items() if arm.endswith(end)}
            about = {"budget": limit, "budgets": {}, "arms": own}
            base = self.baseline.rpartition("@")[0]
            parts[label] = self.model_copy(update={**about, "baseline": base})
        return parts or {"": self}

    def runs(self) -> list[Run]:
        """The runs of all arms."""
        return [run for arm in self.arms.values() for run in arm.runs.values()]

    def measures(self) -> list[str]:
        """The measures that runs have: losses first, then scores in the order of the runs."""
        names = dict.fromkeys(
            name
            for run in self.runs()
            for name in (*filter(is_loss, run.model_extra or ()), *run.scores)
        )
        return sorted(names, key=lambda name: (*RATES, name).index(name))

    def is_partial(self, measure: str) -> bool:
        """Whether scores of this name, or some that a mean of this name is over, are of part of
        the official data."""

        def mean_of(score: str) -> str:
            name, at, by = score.partition("@")
            return f"{name.partition('.')[0]}{at}{by}"

        partial = [each for run in self.runs() for each in run.partial]
        return any(measure in (each, mean_of(each)) for each in partial)

    def main_measure(self) -> str:
        """What arms are compared by: their loss, or bits per character if corpora differ."""
        corpora = {arm.corpus for arm in self.arms.values() if arm.corpus is not None}
        bits = "bits_per_character@0.15"
        return bits if len(corpora) > 1 and bits in self.measures() else RATES[0]

    def failed_runs(self) -> dict[str, str]:
        """The runs that failed, and why."""
        return {
            f"{name}, seed {seed}": run.failed
            for name, arm in self.arms.items()
            for seed, run in sorted(arm.runs.items(), key=lambda item: int(item[0]))
            if run.failed is not None
        }

    def missing_scores(self) -> dict[str, str]:
        """The scores that judges could not give, and why."""
        return {
            f"{score} of {name}, seed {seed}": reason
            for name, arm in self.arms.items()
            for seed, run in arm.runs.items()
            for score, reason in run.unscored.items()
        }


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """The run directory of an arm with a seed.

    Raises:
        InputError: the arm's name leads out of the folder.
    """
    return inside(out, f"{arm}-{seed}", f"{out / RESULT}")


def read_result(out: Path) -> StudyResult:
    """The result of the study in a folder, without any arms if there is none.

    Raises:
        InputError: its file is damaged; names the first fault.
    """
    values = read_json(out / RESULT)
    return checked(out / RESULT, {"arms": {}} if values is None else values, StudyResult)
