"""Runs a study: every arm and seed is a run of ``crammed pretrain``, and then judged.

Finished runs are not repeated, so a study that was stopped continues where it was, and one in which
nothing is left to do ends at once.

``OUT/study.json`` holds ``{"environment", "corpus", "unigram", "budget", "budgets", "jobs",
"baseline", "description", "chosen", "arms": {name: {"words", "runs": {seed: run}}}}``. A run is
``{"loss@0.15", "loss@0.25", "bits_per_character@0.15", "bits_per_character@0.25", "tokens",
"updates", "parameters", "exaflop", "memory_bytes", "joules", "seconds"}``, or ``{"failed":
reason}``; ``scores`` are those of its judges by name, and ``unscored`` says why some are missing;
``joules`` are present if known; ``whole_seconds`` are those of its command from start to end, or of
the last part if it was resumed, and ``judging_seconds`` those of each judge. If the study prepares
its corpora, each arm has the hash of its ``corpus`` beside its words, and ``corpora`` describes
each corpus by its hash; ``judges`` holds a hash of the data of each suite, and ``protocols`` one of
each fine-tuning protocol that judges name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.errors import InputError, TaskFailed
from crammed.files.locks import FolderLock, is_locked
from crammed.files.writing import write_json
from crammed.runs.environment import environment
from crammed.runs.summary import read_summary
from crammed.study.arms import Study, as_typed, merged
from crammed.study.board import Board, Running
from crammed.study.budgets import split
from crammed.study.checks import check_arms
from crammed.study.corpora import Corpora, corpora_of, of_training
from crammed.study.folder import RESULT, finished_runs, read_result, refuse_another, run_folder
from crammed.study.judges import (
    Judge,
    refuse_changed_protocols,
    scores_of,
    stale_suites,
    unscored,
    with_same_means,
    with_scores,
    without_stale,
)
from crammed.study.places import Ended, Place, opened, threads_of
from crammed.study.timing import JUDGING, WHOLE, Finished
from crammed.terminal.progress import Progress

_SCORED = (0, TaskFailed.exit_code)
"""Exit codes of an evaluation that has written scores, all or some."""
SECONDS_BETWEEN_LOOKS = 2.0
"""How often the progress of runs is read from their folders."""
SECONDS_TO_END = 60.0
"""How long to wait for the runs of a killed study to end."""


@dataclass(frozen=True)
class _Run:
    """A run that is to be trained, judged, or both.

    Attributes:
        command: what to type after ``python`` to train it.
        before: its entry in ``study.json`` if it is trained already.
        judges: those that are still to score it.
    """

    arm: str
    seed: int
    folder: Path
    command: list[str]
    before: dict[str, Any] | None = None
    judges: list[Judge] = field(default_factory=list)
    device: str = "auto"
    threads: int = 1


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
) -> dict[str, Any]:
    """Train every arm with every seed, `jobs` runs at a time, which share the CPU's cores.

    The folder may hold other arms and seeds of the same study: what has finished there stays in
    the result.

    Args:
        corpus: one for all arms, or their corpora.
        chosen: what a `Chooser` has chosen for the study, which the folder keeps.
        judges: what each run is judged by after training, besides held-out loss.
        cluster: address of a Ray cluster to run on; None is this machine.

    Returns:
        what ``OUT/study.json`` holds.

    Raises:
        InputError: the folder holds another study, is in use, or cannot be written to; or an arm
            cannot be trained. Nothing was started then.
    """
    corpora = corpora_of(corpus)
    refuse_another(study, corpora, budget, seeds, out)
    runs = list(_runs(study, corpora, budget, seeds, out, jobs))
    todo = _unfinished(runs, _begun(study, corpora, seeds, out, judges), judges)
    untrained = dict.fromkeys(run.arm for run in todo if run.before is None)
    check_arms(study, list(untrained), corpora, budget, here=cluster is None)
    with ExitStack() as stack:
        on_gpus = any(run.device != "cpu" for run in todo)
        there = opened(jobs, len(todo), on_gpus=on_gpus, cluster=cluster) if todo else None
        place = stack.enter_context(there) if there is not None else None
        stack.enter_context(FolderLock(out))
        before, arms = read_result(out) or {}, _begun(study, corpora, seeds, out, judges)
        as_it_is = bool(before) and not untrained
        result: dict[str, Any] = {
            "environment": before.get("environment") if as_it_is else environment(),
            "jobs": before.get("jobs") if as_it_is else jobs,
            "budget": budget.text,
            "baseline": study.baseline,
            "description": study.description,
            "chosen": chosen or {},
            **_about_budgets(study, budget, before),
            **_about_corpora(study, corpora, out, before),
            **_about_judges(judges, before, out),
            "arms": with_same_means(arms, [judge for run in todo for judge in run.judges]),
        }
        if result != before:  # a later call takes what was chosen from here
            write_json(out / RESULT, result)
        if place is not None:
            _train_all(study, seeds, todo, result, out, place, progress)
    return result


def _board(
    study: Study, seeds: int, todo: Sequence[_Run], arms: Mapping[str, Any], progress: Progress
) -> Board:
    """The state of all runs before the first that is left is started.

    Args:
        arms: those of ``study.json``, which may have others than the study.
    """
    judges = dict.fromkeys(judge.name for run in todo for judge in run.judges)
    expected = Finished.of(arms).expected(judges)
    return Board.of(study.arms, seeds, map(_shown, todo), expected, progress)


def _about_budgets(study: Study, budget: Budget, before: Mapping[str, Any]) -> dict[str, Any]:
    """The budgets of the arms, by label.

    A folder begun by an earlier version stays without them, by which `name_in` recognises it.
    """
    if before and "budgets" not in before:
        return {}
    return {"budgets": {label: budget.times(each).text for label, each in study.budgets.items()}}


def _about_corpora(
    study: Study, corpora: Corpora, out: Path, before: Mapping[str, Any]
) -> dict[str, Any]:
    """What ``study.json`` says about the base's corpus, and about all that the study prepared.

    The unigram cross-entropy is that of the baseline's corpus, because it is compared with the
    baseline's losses.
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
        about["corpora"] = {**before.get("corpora", {}), **described}
    return about


def _about_judges(judges: Sequence[Judge], before: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The state of the data and protocols that runs were scored with; empty without judges.

    Raises:
        InputError: runs were scored by a protocol that has changed.
    """
    refuse_changed_protocols(judges, before, out)
    states = {**before.get("judges", {}), **{each.suite: each.state() for each in judges}}
    named = {each.name: made for each in judges if (made := each.protocol_hash()) is not None}
    protocols = {**before.get("protocols", {}), **named}
    about = {"judges": states, "protocols": protocols}
    return {name: values for name, values in about.items() if values}


def _begun(
    study: Study, corpora: Corpora, seeds: int, out: Path, judges: Sequence[Judge]
) -> dict[str, dict[str, Any]]:
    """The arms of the study and those in the folder, with the runs that have finished.

    A run that finished just before its study was killed has its result in its own folder only.
    """
    begun: dict[str, dict[str, Any]] = {}
    for arm in study.arms:
        words = study.words(arm)
        begun[arm] = {"words": as_typed(words), "runs": {}}
        if corpora.own is not None:
            begun[arm]["corpus"] = corpora.of(words).sha256
    for arm, entry in finished_runs(out).items():
        begun.setdefault(arm, entry)["runs"] = entry["runs"]
    for arm in study.arms:
        runs = begun[arm]["runs"]
        for seed in (number for number in range(seeds) if str(number) not in runs):
            with suppress(InputError):  # a damaged result; the run itself will report it
                if (found := _result(run_folder(out, arm, seed))) is not None:
                    runs[str(seed)] = found
    stale = stale_suites(judges, (read_result(out) or {}).get("judges", {}))
    for entry in begun.values():  # also arms and seeds that are not asked for now
        runs = entry["runs"]
        entry["runs"] = {n: without_stale(run, stale) for n, run in runs.items()}
    return begun


def _result(run: Path) -> dict[str, Any] | None:
    """What a study keeps of a run; None if it has not finished.

    Raises:
        InputError: its result is damaged.
    """
    summary = read_summary(run)
    if summary is None:
        return None
    names = ("tokens", "updates", "parameters", "exaflop", "memory_bytes", "joules")
    kept = {name: summary[name] for name in names if summary.get(name) is not None}
    return {**summary["heldout"], **kept, "seconds": summary["charged_seconds"]}


def _unfinished(
    runs: Sequence[_Run], arms: Mapping[str, Any], judges: Sequence[Judge]
) -> list[_Run]:
    """The runs that are to be trained or judged, with what is left to do."""
    todo = []
    for run in runs:
        entry = arms[run.arm]["runs"].get(str(run.seed))
        if entry is not None and not (run.folder / "summary.json").exists():
            entry = None  # it was removed to train the run again
        wanted = [judge for judge in judges if judge.is_missing(entry or {})]
        if entry is None or wanted:
            todo.append(replace(run, before=entry, judges=wanted))
    return todo


def _runs(
    study: Study, corpora: Corpora, budget: Budget, seeds: int, out: Path, jobs: int
) -> Iterator[_Run]:
    """All runs, seed by seed, so that a study that is cut short has complete seeds."""
    threads = threads_of(jobs)
    for seed in range(seeds):
        for arm in study.arms:
            own = merged((f"compute.threads={threads}", *study.words(arm)))
            words, limit = split(own, budget)
            folder, corpus = run_folder(out, arm, seed), corpora.of(words)
            command = ["-m", "crammed", "pretrain", *of_training(words)]
            command += ["--corpus", str(corpus.path), "--budget", limit.text]
            command += ["--seed", str(seed), "--out", str(folder)]
            device = [word for word in words if word.startswith("compute.device=")]
            named = device[-1].partition("=")[2] if device else "auto"
            yield _Run(arm, seed, folder, command, device=named, threads=threads)


def _train_all(
    study: Study,
    seeds: int,
    todo: Sequence[_Run],
    result: dict[str, Any],
    out: Path,
    place: Place,
    progress: Progress,
) -> None:
    """Train and judge, and add what each run gives to the result and its file."""
    board = _board(study, seeds, todo, result["arms"], progress)
    total, kept = seeds * len(study.arms), _Kept(result, out / RESULT)
    with progress.task("study", total) as bar, ThreadPoolExecutor(place.slots) as pool:
        futures = {pool.submit(_train, run, place, kept.of(run)): run for run in todo}
        waiting: set[Future[dict[str, Any]]] = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for future in ended:
                    run, entry = futures[future], future.result()
                    kept.of(run)(entry)
                    board.ended(_shown(run), failed="failed" in entry)
                    progress.line(_line(run, entry, board))
                running = [futures[each] for each in waiting if each.running()]
                bar.update(*board.look(list(map(_shown, running))))
        except BaseException:  # runs that are waiting must not start
            pool.shutdown(wait=False, cancel_futures=True)
            place.stop()
            pool.shutdown(wait=True)
            raise


class _Kept:
    """The result of a study and its file, to which the threads of several runs add."""

    def __init__(self, result: dict[str, Any], file: Path) -> None:
        self._result, self._file, self._lock = result, file, Lock()

    def of(self, run: _Run) -> Callable[[dict[str, Any]], None]:
        """Where the entry of a run is put; a later one replaces it."""

        def keep(entry: dict[str, Any]) -> None:
            with self._lock:
                self._result["arms"][run.arm]["runs"][str(run.seed)] = entry
                write_json(self._file, self._result)

        return keep


def _shown(run: _Run) -> Running:
    """What the board needs to know about a run."""
    return Running(run.arm, run.seed, run.folder, bool(run.judges), run.before is not None)


def _line(run: _Run, entry: Mapping[str, Any], board: Board) -> str:
    """The line that is logged when a run ends."""
    if "failed" in entry:
        what = f"failed: {entry['failed']}"
    else:
        scores = entry.get("scores", {})
        shown = [f"{name} {value:.1f}" for name, value in scores.items()]
        lacks = [f"{name} failed: {why}" for name, why in entry.get("unscored", {}).items()]
        what = ", ".join([f"held-out loss {entry['loss@0.15']:.3f}", *shown, *lacks])
    return f"{run.arm}, seed {run.seed}  {what}  ({board.of_arm(run.arm)})"


def _train(run: _Run, place: Place, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Do what is left of training and judging a run; returns its entry in ``study.json``.

    What is there after each step is kept, because the next may take hours and be killed.
    """
    entry = run.before
    _wait_for(run.folder)
    if entry is None:
        ended = place.run(run.command)
        if ended.code:
            return {"failed": _fault(ended)}
        entry = _result(run.folder)
        if entry is None:
            return {"failed": f"it ended without a result: does this machine see {run.folder}?"}
        entry[WHOLE] = ended.seconds
        keep(entry)
    return _judged(run, entry, place, keep) if run.judges else entry


def _wait_for(run: Path) -> None:
    """Wait for processes that a killed study left behind: they write a checkpoint and end."""
    until = time.monotonic() + SECONDS_TO_END
    while any(map(is_locked, (run, *run.glob("evaluation*")))) and time.monotonic() < until:
        time.sleep(0.1)


def _judged(
    run: _Run, entry: dict[str, Any], place: Place, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The entry of a run with its scores."""
    faults: dict[str, str] = {}
    for judge in run.judges:
        ended = place.run(
            judge.words(run.folder, run.device), {"OMP_NUM_THREADS": str(run.threads)}
        )
        given = scores_of(run.folder, judge) if ended.code in _SCORED else {}
        scores = with_scores(entry.get("scores", {}), given, judge)
        entry = {**entry, "scores": scores}
        if given:
            entry[JUDGING] = {**entry.get(JUDGING, {}), judge.name: ended.seconds}
        keep(entry)
        faults |= unscored(run.folder, judge, scores, _fault(ended))
    return {**entry, "unscored": faults} if faults else entry


def _fault(ended: Ended) -> str:
    """Why a command failed."""
    lines = [line for line in ended.error.splitlines() if line.startswith("error: ")]
    if lines:
        return lines[-1].removeprefix("error: ")
    if ended.code < 0:
        return f"signal {-ended.code} ended it, perhaps because memory ran out"
    return "it crashed: " + (ended.error.strip().splitlines() or [f"exit code {ended.code}"])[-1]
