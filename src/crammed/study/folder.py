"""The folder of a study: whether it holds another study, and what has finished in it."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.config import RunConfig, TokenizerConfig
from crammed.errors import InputError
from crammed.files.folders import inside
from crammed.files.writing import read_json
from crammed.planning.settling import device_of, measuring
from crammed.rules.choosing import Asked, Chosen, choose
from crammed.rules.recipe import load_config
from crammed.rules.sizing import with_values
from crammed.runs.directory import differences, read_config
from crammed.runs.resuming import as_begun, ask_in
from crammed.study.arms import (
    FORMER,
    Study,
    as_typed,
    former_study_names,
    read_study,
    with_words,
)
from crammed.study.budgets import split
from crammed.study.corpora import ArmCorpora, Corpora, of_training
from crammed.study.statistics import lower_is_better
from crammed.study.timing import JUDGING, WHOLE
from crammed.terminal.progress import Progress

RESULT = "study.json"
_SECTIONS = ("chosen", "judges", "protocols", "corpora", "budgets")
_MOST = 1e30
"""Every number of a run is smaller than this."""


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """The run directory of an arm with a seed.

    Raises:
        InputError: the arm's name leads out of the folder.
    """
    return inside(out, f"{arm}-{seed}", f"{out / RESULT}")


def read_result(out: Path) -> dict[str, Any] | None:
    """What the folder's ``study.json`` holds; None if there is none.

    Raises:
        InputError: the file is damaged.
    """
    found = read_json(out / RESULT)
    if found is not None and not _is_result(found):
        raise _no_results(out)
    return found


def _is_result(found: Mapping[str, Any]) -> bool:
    """Whether this has the shape of a result, whichever version wrote it."""
    try:
        json.dumps(found, allow_nan=False)
        sections = (found.get(name, {}) for name in _SECTIONS)
        arms = found["arms"].values()
        return all(isinstance(each, dict) for each in sections) and all(map(_is_arm, arms))
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _is_arm(entry: Mapping[str, Any]) -> bool:
    words, runs = entry["words"], entry["runs"].items()
    return (
        isinstance(words, list)
        and all(isinstance(word, str) for word in words)
        and all(seed.isdecimal() and _is_run(run) for seed, run in runs)
    )


def _is_run(run: Mapping[str, Any]) -> bool:
    """Whether a run says why it failed, or has numbers wherever they are needed."""
    if "failed" in run:
        return isinstance(run["failed"], str)
    losses = (value for name, value in run.items() if lower_is_better(name))
    took = (*run.get(JUDGING, {}).values(), *([run[WHOLE]] if WHOLE in run else []))
    numbers = (run["tokens"], run["seconds"], *losses, *run.get("scores", {}).values(), *took)
    reasons = run.get("unscored", {}).values()
    return all(isinstance(each, int | float) and abs(each) < _MOST for each in numbers) and all(
        isinstance(each, str) for each in reasons
    )


def finished_runs(out: Path) -> dict[str, dict[str, Any]]:
    """The arms in the folder's ``study.json`` with finished runs, without those that failed.

    Why scores are missing is left out: a call that asks for them tries again, and says it again.

    Raises:
        InputError: the file is damaged.
    """
    found = read_result(out)
    finished: dict[str, dict[str, Any]] = {}
    for arm, entry in found["arms"].items() if found is not None else ():
        runs = {
            seed: {name: value for name, value in run.items() if name != "unscored"}
            for seed, run in entry["runs"].items()
            if "failed" not in run
        }
        if runs:
            finished[arm] = {**entry, "runs": runs}
    return finished


class Chooser:
    """Chooses, once, what a study's base or an arm with its own recipe leaves open.

    A study that is resumed takes these values from its folder.

    Args:
        threads: CPU threads of each run, unless the recipe sets them.

    Attributes:
        chosen: for ``study.json``, by name of the arm or `BASE`: ``values`` by key, the measured
            ``flops_per_second`` (None where none was needed), and the ``identity`` of the rest of
            the configuration that they were chosen for.
    """

    def __init__(self, out: Path, threads: int, progress: Progress) -> None:
        self.chosen: dict[str, dict[str, Any]] = {}
        self._threads = threads
        self._progress = progress
        self._out = out
        self._before = (read_result(out) or {}).get("chosen", {})

    def __call__(self, arm: str, asked: Asked, rows: int | None) -> RunConfig:
        """The configuration with its open values chosen; see `Choose`."""
        if not asked.open:
            return asked.config
        wanted = asked.config.identity()  # with the recipe's values for what is open
        try:
            before = self._before.get(arm)
            if before is not None and before["identity"] == wanted:
                self.chosen[arm] = before
                return with_values(asked.config, before["values"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _no_results(self._out) from error
        made = self._choose(asked, rows)
        self.chosen[arm] = {
            "identity": wanted,
            "values": made.values,
            "flops_per_second": made.choice.flops_per_second,
        }
        return made.config

    def tokenizer(self, asked: Asked, rows: float) -> TokenizerConfig:
        """The tokenizer for about this many rows of text, with its vocabulary chosen."""
        tokenizer = self._choose(asked, rows).config.tokenizer
        self._progress.line(f"vocabulary  {tokenizer.vocab_size:,}, from the study's base")
        return tokenizer

    def _choose(self, asked: Asked, rows: float | None) -> Chosen:
        threads = asked.config.compute.threads or self._threads
        own = replace(asked, config=with_values(asked.config, {"compute.threads": threads}))
        return choose(own, rows, measuring(device_of(own.nominally(rows), rows), self._progress))


def name_in(out: Path, name: str) -> str:
    """The name of the study to continue: a built-in one as it was when the folder was begun.

    Folders from before all built-in studies changed are known by their missing ``budgets``.
    """
    found = read_json(out / RESULT)
    began = isinstance(found, dict) and "budgets" not in found
    return f"{FORMER}{name}" if began and name in former_study_names() else name


def began_earlier(
    name: str, words: Sequence[str], corpora: Corpora, budget: Budget, out: Path
) -> str | None:
    """The earlier version whose recipes the study's runs in the folder have; None is today's.

    The first run found decides for all. `name` and `words` are as for `load_study`.
    """
    study = with_words(read_study(name), words)
    for arm in study.arms:
        recipe, *overrides = of_training(study.words(arm))
        for run in sorted(out.glob(f"{glob.escape(arm)}-*")):
            seed = run.name.removeprefix(f"{arm}-")
            if seed.isdecimal() and (run / "config.json").exists():
                try:
                    fixed = {**corpora.fixed(study.words(arm), budget), "seed": int(seed)}
                    return as_begun(run, ask_in(run, recipe, overrides, fixed)).earlier
                except InputError:  # `load_study` raises it again, with the name of the arm
                    return None
    return None


def refuse_foreign(out: Path) -> None:
    """Check that the folder is not of another kind, with whose files those of a study would mix.

    Raises:
        InputError: it is a run, a model, an evaluation or a corpus.
    """
    for file in ("config.json", "evaluation.json", "manifest.json"):
        if (out / file).exists():
            raise InputError(
                f"{out} is not the folder of a study (it holds {file}): choose another --out"
            )


def refuse_another(study: Study, corpora: Corpora, budget: Budget, seeds: int, out: Path) -> None:
    """Check that the folder holds nothing, or this study with any arms and seeds.

    Runs are compared as ``crammed pretrain`` compares them before it resumes one; if their folders
    are gone, the words of their arm are compared.

    Raises:
        InputError: it holds runs with another budget, corpus or configuration of an arm.
    """
    refuse_foreign(out)
    finished = finished_runs(out)
    found = read_result(out) or {}
    if finished and found.get("corpus") != corpora.base.sha256:
        raise _another(out, "it was trained on another corpus")
    if finished and found.get("budget") != budget.text:
        raise _another(out, f"budget: {found.get('budget')} there, {budget.text} here")
    for arm in study.arms:
        runs = [(seed, run_folder(out, arm, seed)) for seed in range(seeds)]
        there = [(seed, run) for seed, run in runs if (run / "config.json").exists()]
        if there:
            _compare_runs(there, config_of(study, arm, corpora, budget), arm, out)
        elif arm in finished:
            _compare_words(finished[arm]["words"], as_typed(study.words(arm)), arm, out)


def config_of(study: Study, arm: str, corpora: ArmCorpora, budget: Budget) -> RunConfig:
    """The configuration of an arm's runs, except for the seed."""
    words, limit = split(study.words(arm), budget)
    recipe, *overrides = of_training(words)
    fixed = corpora.fixed(words, limit)
    return load_config(recipe, overrides, fixed, rows=corpora.rows(fixed.get("corpus")))


def _compare_runs(there: list[tuple[int, Path]], config: RunConfig, arm: str, out: Path) -> None:
    for seed, run in there:
        try:
            old = read_config(run)
        except InputError:  # this run will fail and say why; the others continue
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


def _no_results(out: Path) -> InputError:
    return InputError(
        f"{out / RESULT} does not hold the results of a study: restore it from a copy, or choose "
        "another --out"
    )


def _another(out: Path, difference: str) -> InputError:
    return InputError(f"{out} holds another study ({difference}): choose another --out")
