"""Runs a study: every arm and seed is a run of ``crammed pretrain``, and then judged.

Finished runs are not repeated, so a study that was stopped continues where it was, and one in which
nothing is left to do ends at once. ``OUT/study.json`` holds the result (`crammed.study.result`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from crammed.budget import Budget
from crammed.config import ComputeConfig
from crammed.data.corpus import Corpus
from crammed.errors import TaskFailed
from crammed.files.locks import FolderLock, is_locked
from crammed.files.writing import write_json
from crammed.runs.environment import environment
from crammed.study.result import RESULT, Arm, Environment, Run, StudyResult, UpdateTime, read_result
from crammed.study.running.board import Board
from crammed.study.running.checks import check_arms
from crammed.study.running.folder import (
    Left,
    begun_arms,
    config_of,
    left_runs,
    refuse_another,
    result_of,
)
from crammed.study.running.judges import (
    Judge,
    partial_scores,
    refuse_changed_protocols,
    scores_of,
    unscored,
    with_same_means,
    with_scores,
)
from crammed.study.running.places import Ended, Place, opened, threads_of
from crammed.study.running.timing import Finished
from crammed.study.spec.arms import Study
from crammed.study.spec.budgets import limits, split
from crammed.study.spec.corpora import Corpora, of_training
from crammed.study.spec.small import typed_keys
from crammed.terminal.progress import Progress

_SCORED = (0, TaskFailed.exit_code)
"""Exit codes of an evaluation that has written scores, all or some."""
SECONDS_BETWEEN_LOOKS = 2.0
"""How often the progress of runs is read from their folders."""
SECONDS_TO_END = 60.0
"""How long to wait for the runs of a killed study to end."""


def run_study(
    study: Study,
    corpus: Corpus | Corpora,
    budget: Budget,
    seeds: int,
    out: Path,
    jobs: int,
    progress: Progress,
    chosen: Mapping[str, Any] | None = None,
    judges: Sequence[Judge] = (),
    cluster: str | None = None,
    paces: Mapping[str, UpdateTime] | None = None,
) -> StudyResult:
    """Train every arm with every seed, `jobs` runs at a time, which share the CPU's cores.

    What the folder holds of other arms and seeds of the same study stays in the result.

    Args:
        chosen: what a `Chooser` has chosen for the study, which the folder keeps.
        judges: what each run is judged by after training, besides held-out loss.
        cluster: address of a Ray cluster to run on; None is this machine.
        paces: how long updates take, which the folder keeps.

    Raises:
        InputError: the folder holds another study, is in use, or cannot be written to; or an arm
            cannot be trained. Nothing was started then.
    """
    corpora = Corpora(corpus) if isinstance(corpus, Corpus) else corpus
    refuse_another(study, corpora, budget, seeds, out)
    todo = left_runs(study, seeds, begun_arms(study, seeds, out, judges), out, judges)
    asked = [judge for run in todo for judge in run.judges]
    commands, computes = _commands(todo, study, corpora, budget, jobs)
    untrained = dict.fromkeys(run.arm for run in todo if run.before is None)
    check_arms(study, list(untrained), corpora, budget, here=cluster is None)
    with ExitStack() as stack:
        if todo:
            on_gpus = {each.device for each in computes.values()} != {"cpu"}
            there = opened(jobs, len(todo), on_gpus=on_gpus, cluster=cluster)
            place = stack.enter_context(there)
        stack.enter_context(FolderLock(out))
        before, arms = read_result(out), begun_arms(study, seeds, out, judges)
        result = StudyResult(
            **_about_machine(jobs, before, trains=bool(untrained)),
            budget=budget.text,
            budgets={label: each.text for label, each in limits(study.budgets, budget).items()},
            baseline=study.baseline,
            description=study.description,
            chosen=dict(chosen or {}),
            paces={**before.paces, **(paces or {})},
            **_about_corpora(study, corpora, out, before),
            **_about_judges(judges, before, out),
            arms=with_same_means(_with_corpora(arms, study, corpora), asked),
        )
        if result != before:  # a later call takes what was chosen from here
            write_json(out / RESULT, result.values())
        if todo:
            board = Board.of(study.arms, seeds, todo, Finished.of(arms), progress.clock)
            _train_all(commands, computes, board, result, out, place, progress)
    return result


def _about_machine(jobs: int, before: StudyResult, *, trains: bool) -> dict[str, Any]:
    """What the study began with, and with which other commits it goes on."""
    if not trains and before.arms:
        return {"environment": before.environment, "jobs": before.jobs}
    now = Environment(**environment())
    first = before.environment if before.arms else None
    return {"environment": first.with_later(now.commit) if first else now, "jobs": jobs}


def _about_corpora(
    study: Study, corpora: Corpora, out: Path, before: StudyResult
) -> dict[str, Any]:
    """What ``study.json`` says about the base's corpus, and about all that the study prepared.

    The unigram cross-entropy is of the baseline's corpus, as the losses that it is compared with.
    """
    of_baseline = corpora.of(study.words(study.baseline)).manifest["heldout"]
    unigram = of_baseline["unigram_cross_entropy"]
    about: dict[str, Any] = {"corpus": corpora.base.sha256, "unigram": unigram}
    if corpora.own is not None:
        described = {
            each.sha256: {
                "folder": str(each.path.relative_to(out)),
                "vocab_size": each.vocab_size,
                "tokens": each.manifest["tokens"],
            }
            for each in corpora.all
        }
        about["corpora"] = {**before.corpora, **described}
    return about


def _with_corpora(arms: dict[str, Arm], study: Study, corpora: Corpora) -> dict[str, Arm]:
    for arm in study.arms if corpora.own is not None else ():
        arms[arm].corpus = corpora.of(study.words(arm)).sha256
    return arms


def _about_judges(judges: Sequence[Judge], before: StudyResult, out: Path) -> dict[str, Any]:
    """The state of the data and protocols that runs were scored with; empty without judges."""
    refuse_changed_protocols(judges, before, out)
    states = {**before.judges, **{each.label: each.state() for each in judges}}
    named = {each.name: made for each in judges if (made := each.protocol_hash()) is not None}
    about = {"judges": states, "protocols": {**before.protocols, **named}}
    return {name: values for name, values in about.items() if values}


def _commands(
    todo: Sequence[Left], study: Study, corpora: Corpora, budget: Budget, jobs: int
) -> tuple[dict[Left, list[str]], dict[str, ComputeConfig]]:
    """What to type after ``python`` to train each run, and where an arm's runs compute."""
    threads, arms = threads_of(jobs), dict.fromkeys(run.arm for run in todo)
    computes = {arm: config_of(study, arm, corpora, budget, threads).compute for arm in arms}
    commands = {}
    for run in todo:
        words, limit = split(study.words(run.arm), budget)
        if "compute.threads" not in typed_keys(words):
            words.append(f"compute.threads={computes[run.arm].threads}")
        command = ["-m", "crammed", "pretrain", *of_training(words)]
        command += ["--corpus", str(corpora.of(words).path), "--budget", limit.text]
        commands[run] = [*command, "--seed", str(run.seed), "--out", str(run.folder)]
    return commands, computes


def _train_all(
    commands: Mapping[Left, Sequence[str]],
    computes: Mapping[str, ComputeConfig],
    board: Board,
    result: StudyResult,
    out: Path,
    place: Place,
    progress: Progress,
) -> None:
    lock = Lock()  # each run has a thread of its own

    def kept(run: Left, entry: Run) -> None:
        with lock:
            result.arms[run.arm].runs[str(run.seed)] = entry
            write_json(out / RESULT, result.values())

    total = board.seeds * len(board.finished)
    with progress.task("study", total) as bar, ThreadPoolExecutor(place.slots) as pool:
        futures = {
            pool.submit(_train, run, command, computes[run.arm], place, partial(kept, run)): run
            for run, command in commands.items()
        }
        waiting: set[Future[Run]] = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for future in ended:
                    run, entry = futures[future], future.result()
                    kept(run, entry)
                    board.ended(run, failed=entry.failed is not None)
                    progress.line(_line(run, entry, board))
                running = [futures[each] for each in waiting if each.running()]
                bar.update(*board.look(running))
        except BaseException:  # runs that are waiting must not start
            pool.shutdown(wait=False, cancel_futures=True)
            place.stop()
            pool.shutdown(wait=True)
            raise


def _line(run: Left, entry: Run, board: Board) -> str:
    if entry.failed is not None:
        what = f"failed: {entry.failed}"
    else:
        shown = [f"{name} {value:.1f}" for name, value in entry.scores.items()]
        lacks = [f"{name} failed: {why}" for name, why in entry.unscored.items()]
        what = ", ".join([f"held-out loss {entry.value('loss@0.15'):.3f}", *shown, *lacks])
    return f"{run.arm}, seed {run.seed}  {what}  ({board.of_arm(run.arm)})"


def _train(
    run: Left,
    command: Sequence[str],
    compute: ComputeConfig,
    place: Place,
    keep: Callable[[Run], None],
) -> Run:
    """Do what is left of training and judging a run.

    What is there after each step is kept, because the next may take hours and be killed.
    """
    entry = run.before
    _wait_for(run.folder)
    if entry is None:
        ended = place.run(command)
        if ended.code:
            return Run(failed=_fault(ended))
        entry = result_of(run.folder)
        if entry is None:
            return Run(failed=f"it ended without a result: does this machine see {run.folder}?")
        entry.whole_seconds = ended.seconds
        keep(entry)
    threads = {"OMP_NUM_THREADS": str(compute.threads)}
    faults: dict[str, str] = {}
    for judge in run.judges:
        ended = place.run(judge.words(run.folder, compute.device), threads)
        given = scores_of(run.folder, judge) if ended.code in _SCORED else {}
        entry = entry.model_copy(update={"scores": with_scores(entry.scores, given, judge)})
        if given:
            entry.judging_seconds = {**entry.judging_seconds, judge.name: ended.seconds}
            others = [name for name in entry.partial if name not in given]
            entry.partial = [*others, *partial_scores(run.folder, judge)]
        keep(entry)
        faults |= unscored(run.folder, judge, entry.scores, _fault(ended))
    return entry.model_copy(update={"unscored": faults}) if faults else entry


def _wait_for(run: Path) -> None:
    """Wait for processes that a killed study left behind: they write a checkpoint and end."""
    until = time.monotonic() + SECONDS_TO_END
    while any(map(is_locked, (run, *run.glob("evaluation*")))) and time.monotonic() < until:
        time.sleep(0.1)


def _fault(ended: Ended) -> str:
    lines = [line for line in ended.error.splitlines() if line.startswith("error: ")]
    if lines:
        return lines[-1].removeprefix("error: ")
    if ended.code < 0:
        return f"signal {-ended.code} ended it, perhaps because memory ran out"
    return "it crashed: " + (ended.error.strip().splitlines() or [f"exit code {ended.code}"])[-1]
