"""Runs a study: every arm and seed is a run of ``crammed pretrain``.

Finished runs are not repeated, so a study that was stopped continues where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.files import FolderLock, read_json, write_json
from crammed.progress import Progress
from crammed.rundir import environment
from crammed.study.arms import Study, as_typed, merged
from crammed.study.budgets import split
from crammed.study.folder import RESULT, finished_runs, refuse_another, run_folder
from crammed.workers import cores


@dataclass(frozen=True)
class _Run:
    arm: str
    seed: int
    command: list[str]


def run_study(
    study: Study,
    corpus: Corpus,
    budget: Budget,
    seeds: int,
    out: Path,
    jobs: int,
    progress: Progress,
    chosen: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train every arm with every seed, `jobs` runs at a time, which share the CPU's cores.

    The folder may hold other arms and seeds of the same study: what has finished there stays in
    the result.

    Args:
        chosen: what a `Chooser` has chosen for the study, which the folder keeps.

    Returns:
        what ``OUT/study.json`` holds: ``{"environment", "corpus", "budget", "jobs", "budgets",
        "baseline", "chosen", "arms": {name: {"words", "runs": {seed: run}}}}``, where a run is
        ``{"loss@0.15", "loss@0.25", "tokens", "updates", "parameters", "exaflop", "seconds"}``, or
        ``{"failed": reason}``.

    Raises:
        InputError: the folder holds another study, is in use, or cannot be written to.
    """
    refuse_another(study, corpus, budget, seeds, out)
    runs = list(_runs(study, corpus, budget, seeds, out, jobs))
    with FolderLock(out):
        result: dict[str, Any] = {
            "environment": environment(),
            "corpus": corpus.sha256,
            "budget": budget.text,
            "jobs": jobs,
            "budgets": {label: budget.times(each).text for label, each in study.budgets.items()},
            "baseline": study.baseline,
            "chosen": chosen or {},
            "arms": _begun(study, out),
        }
        write_json(out / RESULT, result)  # a call that goes on takes from here what was chosen
        _train_all(runs, result, out, jobs, progress)
    return result


def _begun(study: Study, out: Path) -> dict[str, dict[str, Any]]:
    """The arms of the study, and of the folder, with the runs that have finished."""
    begun: dict[str, dict[str, Any]] = {
        arm: {"words": as_typed(study.words(arm)), "runs": {}} for arm in study.arms
    }
    for arm, entry in finished_runs(out).items():
        begun.setdefault(arm, entry)["runs"] = entry["runs"]
    return begun


def _train_all(
    runs: list[_Run], result: dict[str, Any], out: Path, jobs: int, progress: Progress
) -> None:
    """Train, and add what each run gives to the result and its file."""
    with progress.task("study", len(runs)) as bar, ThreadPoolExecutor(jobs) as pool:
        processes = _Processes()
        futures = {pool.submit(_train, run, processes): run for run in runs}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                run = futures[future]
                result["arms"][run.arm]["runs"][str(run.seed)] = future.result()
                write_json(out / RESULT, result)
                bar.update(done, f"{run.arm}, seed {run.seed}")
        except BaseException:  # those that wait must not start
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            pool.shutdown(wait=True)
            raise


def threads_of(jobs: int) -> int:
    """CPU threads of each of so many runs at a time."""
    return max(1, cores() // jobs)


def _runs(
    study: Study, corpus: Corpus, budget: Budget, seeds: int, out: Path, jobs: int
) -> Iterator[_Run]:
    """Seeds are the outer loop, so that a study that is cut short has complete seeds."""
    threads = f"compute.threads={threads_of(jobs)}"
    for seed in range(seeds):
        for arm in study.arms:
            words, limit = split(merged((threads, *study.words(arm))), budget)
            command = [sys.executable, "-m", "crammed", "pretrain", *words]
            command += ["--corpus", str(corpus.path), "--budget", limit.text]
            command += ["--seed", str(seed), "--out", str(run_folder(out, arm, seed)), "--json"]
            yield _Run(arm, seed, command)


class _Processes:
    """The processes of the runs, which all end when the study is stopped."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self._stopped = False

    def run(self, command: list[str]) -> tuple[int, str, str]:
        """Run a command to its end; its exit code, output and errors."""
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        if self._stopped:  # while it was started
            self.stop()
        out, error = process.communicate()
        return process.returncode, out, error

    def stop(self) -> None:
        """Have all runs write a checkpoint and end."""
        self._stopped = True
        for process in self._started:
            process.terminate()


def _train(run: _Run, processes: _Processes) -> dict[str, Any]:
    code, out, error = processes.run(run.command)
    if code:
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        return {"failed": lines[-1].removeprefix("error: ") if lines else "it crashed"}
    printed = json.loads(out)
    summary = read_json(Path(printed["run_dir"]) / "summary.json") or {}
    losses = {name: v for name, v in printed["heldout"].items() if name.startswith("loss@")}
    kept = {name: printed[name] for name in ("tokens", "updates", "parameters", "exaflop")}
    return {**losses, **kept, "seconds": summary["charged_seconds"]}
