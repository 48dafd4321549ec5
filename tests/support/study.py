"""A stand-in for the runs of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.study.arms import Study
from crammed.study.corpora import Corpora
from crammed.study.folder import Left
from crammed.study.result import Run, run_folder
from crammed.study.runner import _command

SUMMARY = {
    "tokens": 10,
    "updates": 6,
    "parameters": 5,
    "exaflop": 1e-9,
    "charged_seconds": 2.0,
    "heldout": {"loss@0.15": 4.0, "loss@0.25": 5.0},
}
"""The part of a run's summary that a study reads."""


def run_of(loss: float = 4.0, **more: Any) -> Run:
    """A finished run."""
    losses = {"loss@0.15": loss, "loss@0.25": 5.0}
    cost = {"tokens": 10, "updates": 6, "parameters": 5, "seconds": 2.0}
    return Run.model_validate({**losses, **cost, **more})


def commands(
    study: Study, corpus: Corpus, budget: Budget, out: Path, jobs: int = 1
) -> dict[str, list[str]]:
    """What is typed to train the first run of each arm."""
    runs = [Left(arm, 0, run_folder(out, arm, 0)) for arm in study.arms]
    return {run.arm: _command(run, study, Corpora(corpus), budget, jobs) for run in runs}
