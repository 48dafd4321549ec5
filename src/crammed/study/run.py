"""A study: arms that differ in a few values, several seeds each, all with the same budget.

A study is a YAML file, built in or the user's:

    base: [crammed, model.layers=4]      # recipe and overrides of every arm
    baseline: adamw
    arms:
      adamw: []
      muon: [optim.name=muon]            # a recipe here replaces that of the base

What follows from the budget does so once, for the base: arms of its recipe have its size, batch and
rates, but for what they set themselves. Every arm and seed is a run of ``crammed pretrain``: a
study that is stopped goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from crammed.config import RunConfig, Section
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files import read_json, write_json
from crammed.progress import Progress
from crammed.recipe import load_config
from crammed.rundir import environment
from crammed.sizing import FOLLOWERS
from crammed.workers import cores
from crammed.yamlfile import explain, names_in, read_yaml

Words = Annotated[tuple[str, ...], Field(strict=False)]


class Study(Section):
    """The file above."""

    base: Words = ()
    baseline: str
    arms: Annotated[dict[str, Words], Field(min_length=2)]

    def words(self, arm: str) -> list[str]:
        """Recipe and overrides of an arm: its own values replace those of the base."""
        return _joined((*self.base, *self.arms[arm]))


def study_names() -> list[str]:
    """Names of the built-in studies, sorted."""
    return names_in(_folder())


def load_study(name: str, corpus: Corpus, budget: str, words: Sequence[str] = ()) -> Study:
    """Read a study and check every arm on the corpus and the budget that it is for.

    Args:
        name: of a built-in study, or the path of a .yaml file.
        words: a recipe or overrides on top of the study's base.

    Raises:
        InputError: it cannot be read, or an arm is no valid configuration.
    """
    try:
        study = Study.model_validate(read_yaml("study", name, _folder()))
    except ValidationError as error:
        raise InputError(f"study {name}: {explain(error, Study)}") from error
    if study.baseline not in study.arms:
        raise InputError(f"study {name}: baseline {study.baseline} is none of its arms")
    fixed = {**corpus.settings(), "budget": {"limit": budget}}
    recipe, *overrides = _joined((*study.base, *words))
    base = load_config(recipe, overrides, fixed, rows=corpus.rows)
    followed = _followed(base)
    arms = {
        arm: own if any("=" not in word for word in own) else (*followed, *own)
        for arm, own in study.arms.items()
    }
    study = study.model_copy(update={"base": (recipe, *overrides), "arms": arms})
    for arm in study.arms:
        recipe, *overrides = study.words(arm)
        if taken := [word for word in overrides if word.startswith(("data.", "tokenizer."))]:
            raise InputError(
                f"study {name}, arm {arm}: {taken[0]} is a matter of the corpus: prepare another"
            )
        try:
            load_config(recipe, overrides, fixed)
        except InputError as error:
            raise InputError(f"study {name}, arm {arm}: {error}") from error
    return study


def _folder() -> Traversable:
    return resources.files("crammed") / "study" / "studies"


def _followed(config: RunConfig) -> list[str]:
    """What may have followed from the budget, as overrides; the corpus has its own vocabulary."""
    values = config.model_dump(mode="json")
    keys = [key.split(".") for key in FOLLOWERS if not key.startswith("tokenizer.")]
    return [f"{section}.{name}={values[section][name]}" for section, name in keys]


def _joined(words: Iterable[str]) -> list[str]:
    """A recipe and its overrides; of those that come twice, the last."""
    recipe, values = "crammed", {}
    for word in words:
        key, equals, _ = word.partition("=")
        if equals:
            values[key] = word
        else:
            recipe = word
    return [recipe, *values.values()]


@dataclass(frozen=True)
class _Run:
    arm: str
    seed: int
    command: list[str]


def run_study(
    study: Study,
    corpus: Corpus,
    budget: str,
    seeds: int,
    out: Path,
    jobs: int,
    progress: Progress,
) -> dict[str, Any]:
    """Train every arm with every seed, `jobs` at a time on a CPU's cores.

    Returns:
        what ``OUT/study.json`` holds: ``{"budget", "baseline", "arms": {name: {"words", "runs":
        {seed: {"loss@0.15", "loss@0.25", "tokens", "updates", "seconds"}}}}}``; a run that failed
        has ``failed`` instead.
    """
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "environment": environment(),
        "corpus": corpus.sha256,
        "budget": budget,
        "jobs": jobs,
        "baseline": study.baseline,
        "arms": {arm: {"words": study.words(arm), "runs": {}} for arm in study.arms},
    }
    listed = list(_runs(study, corpus, budget, seeds, out, jobs))
    with progress.task("study", len(listed)) as bar, ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_train, run): run for run in listed}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                run = futures[future]
                result["arms"][run.arm]["runs"][str(run.seed)] = future.result()
                write_json(out / "study.json", result)
                bar.update(done, f"{run.arm}, seed {run.seed}")
        except BaseException:  # Ctrl-C reaches the runs too; those that wait are not to begin
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return result


def _runs(
    study: Study, corpus: Corpus, budget: str, seeds: int, out: Path, jobs: int
) -> Iterator[_Run]:
    """Seeds in the outer loop, so that a study that is cut short has whole seeds."""
    threads = f"compute.threads={max(1, cores() // jobs)}"
    for seed in range(seeds):
        for arm in study.arms:
            words = _joined((threads, *study.words(arm)))
            command = [sys.executable, "-m", "crammed", "pretrain", *words]
            command += ["--corpus", str(corpus.path), "--budget", budget]
            command += ["--seed", str(seed), "--out", str(out / f"{arm}-{seed}"), "--json"]
            yield _Run(arm, seed, command)


def _train(run: _Run) -> dict[str, Any]:
    done = subprocess.run(run.command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        return {"failed": lines[-1].removeprefix("error: ") if lines else "it crashed"}
    printed = json.loads(done.stdout)
    summary = read_json(Path(printed["run_dir"]) / "summary.json") or {}
    losses = {name: v for name, v in printed["heldout"].items() if name.startswith("loss@")}
    kept = {name: printed[name] for name in ("tokens", "updates", "parameters")}
    return {**losses, **kept, "seconds": summary["charged_seconds"]}
