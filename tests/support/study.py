"""A stand-in for the runs of studies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.study.result import Run, run_folder
from crammed.study.running.folder import Left
from crammed.study.running.runner import _commands
from crammed.study.spec.arms import Study
from crammed.study.spec.corpora import Corpora
from support.text import MODEL

LOSSES = {"loss@0.15": 4.0, "loss@0.25": 5.0}
SUMMARY = {
    **{"recipe": "crammed", "identity": "", "seed": 0, "budget": "6updates", "u": 1.0},
    **{"charged_seconds": 2.0, "accounts": {"step": 2.0}, "parameters": 5, "updates": 6},
    **{"tokens": 10, "epochs": 1.0, "tokens_per_second": 5.0, "exaflop": 1e-9},
    **{"peak_exaflop": None, "peak_source": None, "device": "cpu", "dtype": "float32"},
    "heldout": {**LOSSES, "bits_per_character@0.15": 1.0, "bits_per_character@0.25": 1.2},
    **{"unigram_cross_entropy": 5.0, "mask_token": "[MASK]", "fill_mask": []},
    "corpus": {
        **{"sha256": "", "sources": [], "documents": 1, "characters": 9, "tokens": 9},
        "vocab_size": 8,
    },
    "export": {"format": "custom", "reasons": [], "logit_difference": None},
}
"""The summary of a run."""


def write_study(
    folder: Path, arms: Any, base: Sequence[str] = ("crammed", *MODEL), **values: Any
) -> str:
    """Write the file of a study whose baseline is the arm plain; returns its path."""
    file = folder / "s.yaml"
    made = {"base": base, "baseline": "plain", "arms": arms, **values}
    file.write_text(json.dumps(made))  # JSON is YAML
    return str(file)


def run_of(loss: float = 4.0, **more: Any) -> Run:
    cost = {"tokens": 10, "updates": 6, "parameters": 5, "seconds": 2.0}
    return Run.model_validate({**LOSSES, "loss@0.15": loss, **cost, **more})


def commands(
    study: Study, corpus: Corpus, budget: Budget, out: Path, jobs: int = 1
) -> dict[str, list[str]]:
    """What is typed to train the first run of each arm."""
    runs = [Left(arm, 0, run_folder(out, arm, 0)) for arm in study.arms]
    made, _ = _commands(runs, study, Corpora(corpus), budget, jobs)
    return {run.arm: command for run, command in made.items()}
