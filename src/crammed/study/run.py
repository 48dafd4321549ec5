"""A study: arms that differ in a few values, several seeds each, all with the same budget.

A study is a YAML file:

    base: [crammed, model.layers=4]      # recipe and overrides of every arm
    baseline: adamw
    arms:
      adamw: []
      muon: [optim.name=muon]            # a recipe here replaces that of the base

Every arm and seed is a run of ``crammed pretrain``: a study that is stopped goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from crammed.config import Section
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files import read_json, write_json
from crammed.progress import Progress
from crammed.recipe import load_config
from crammed.rundir import environment
from crammed.workers import cores
from crammed.yamlfile import Loader, explain

Words = Annotated[tuple[str, ...], Field(strict=False)]


class Study(Section):
    """The file above."""

    base: Words = ()
    baseline: str
    arms: Annotated[dict[str, Words], Field(min_length=2)]

    def words(self, arm: str) -> list[str]:
        """Recipe and overrides of an arm: its own values replace those of the base."""
        recipe, values = "crammed", {}
        for word in (*self.base, *self.arms[arm]):
            key, equals, _ = word.partition("=")
            if equals:
                values[key] = word
            else:
                recipe = word
        return [recipe, *values.values()]


def load_study(file: Path, corpus: Corpus) -> Study:
    """Read a study and check every arm on the corpus that it is for.

    Raises:
        InputError: it cannot be read, or an arm is no valid configuration.
    """
    try:
        study = Study.model_validate(yaml.load(file.read_text("utf-8"), Loader))
    except OSError as error:
        raise InputError(f"cannot read study {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"study {file} is not valid YAML: {problem}") from error
    except ValidationError as error:
        raise InputError(f"study {file}: {explain(error, Study)}") from error
    if study.baseline not in study.arms:
        raise InputError(f"study {file}: baseline {study.baseline} is none of its arms")
    for arm in study.arms:
        recipe, *overrides = study.words(arm)
        try:
            load_config(recipe, overrides, corpus.settings())
        except InputError as error:
            raise InputError(f"study {file}, arm {arm}: {error}") from error
    return study


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
        for done, future in enumerate(as_completed(futures), 1):
            run = futures[future]
            result["arms"][run.arm]["runs"][str(run.seed)] = future.result()
            write_json(out / "study.json", result)
            bar.update(done, f"{run.arm}, seed {run.seed}")
    return result


def _runs(
    study: Study, corpus: Corpus, budget: str, seeds: int, out: Path, jobs: int
) -> Iterator[_Run]:
    """Seeds in the outer loop, so that a study that is cut short has whole seeds."""
    threads = max(1, cores() // jobs)
    for seed in range(seeds):
        for arm in study.arms:
            command = [sys.executable, "-m", "crammed", "pretrain", *study.words(arm)]
            command += [
                f"compute.threads={threads}",
                "--corpus",
                str(corpus.path),
                "--budget",
                budget,
            ]
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
