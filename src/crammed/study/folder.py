"""The folder of a study: whether it holds another one, and what has finished in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files import read_json
from crammed.recipe import load_config
from crammed.rundir import differences, read_config
from crammed.study.arms import Study

RESULT = "study.json"


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """The run directory of an arm with a seed."""
    return out / f"{arm}-{seed}"


def finished_runs(out: Path) -> dict[str, dict[str, Any]]:
    """The arms in the folder's ``study.json``, without runs that failed and arms without runs.

    Raises:
        InputError: the file is damaged.
    """
    found = read_json(out / RESULT)
    finished: dict[str, dict[str, Any]] = {}
    if found is None:
        return finished
    try:
        for arm, entry in found["arms"].items():
            runs = {seed: run for seed, run in entry["runs"].items() if "failed" not in run}
            if runs:
                finished[arm] = {"words": list(entry["words"]), "runs": runs}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{out / RESULT} does not hold the results of a study: choose another --out"
        ) from error
    return finished


def refuse_another(study: Study, corpus: Corpus, budget: Budget, seeds: int, out: Path) -> None:
    """Check that the folder holds nothing, or this study with any arms and seeds.

    Runs are compared as ``crammed pretrain`` compares them before it resumes one; runs whose
    folders are gone, by the words of their arm.

    Raises:
        InputError: it holds runs with another budget, corpus or configuration of an arm.
    """
    finished = finished_runs(out)
    found = read_json(out / RESULT) or {}
    if finished and found.get("corpus") != corpus.sha256:
        raise _another(out, "it was trained on another corpus")
    if finished and found.get("budget") != budget.text:
        raise _another(out, f"budget: {found.get('budget')} there, {budget.text} here")
    for arm in study.arms:
        runs = [(seed, run_folder(out, arm, seed)) for seed in range(seeds)]
        there = [(seed, run) for seed, run in runs if (run / "config.json").exists()]
        if there:
            _compare_runs(there, _config(study, arm, corpus, budget), arm, out)
        elif arm in finished:
            _compare_words(finished[arm]["words"], study.words(arm), arm, out)


def _config(study: Study, arm: str, corpus: Corpus, budget: Budget) -> RunConfig:
    recipe, *overrides = study.words(arm)
    fixed: Mapping[str, Any] = {**corpus.settings(), "budget": {"limit": budget}}
    return load_config(recipe, overrides, fixed, rows=corpus.rows)


def _compare_runs(there: list[tuple[int, Path]], config: RunConfig, arm: str, out: Path) -> None:
    for seed, run in there:
        try:
            old = read_config(run)
        except InputError:  # this run fails, and says why; the others go on
            continue
        new = config.model_copy(update={"seed": seed})
        if old.corpus != new.corpus:
            raise _another(out, "it was trained on another corpus")
        if old.identity() != new.identity():
            raise _another(out, f"arm {arm}, {', '.join(differences(old, new)[:3])}")


def _compare_words(old: list[str], new: list[str], arm: str, out: Path) -> None:
    there, here = (
        {word for word in words if not word.startswith("compute.")} for words in (old, new)
    )
    if there != here:
        lists = (" ".join(sorted(words)) or "nothing" for words in (there - here, here - there))
        raise _another(out, "arm {}, {} there, {} here".format(arm, *lists))


def _another(out: Path, difference: str) -> InputError:
    return InputError(f"{out} holds another study ({difference}): choose another --out")
