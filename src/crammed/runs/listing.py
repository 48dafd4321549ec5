"""Lists the runs below a folder, and how far each of them is.

As little as possible is read of each, so that hundreds of them take a second; a damaged run is
listed as such.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files.locks import is_locked
from crammed.files.writing import last_record, read_json
from crammed.runs.directory import of_all_suites
from crammed.runs.summary import read_summary

_MARKS = {"env.json", "summary.json", "metrics.jsonl", "events.jsonl"}
_LOG = {"metrics.jsonl", "events.jsonl"}


@dataclass(frozen=True)
class Listed:
    """A run.

    Attributes:
        path: below the folder that was searched.
        state: ``finished``, ``running``, ``stopped``, ``failed`` or ``damaged``.
        u: the share of the budget that was spent at the last log point.
        heldout_loss: on held-out text with 15 % masked, of a run that has finished.
        scores: in percent, by name.
        problem: why it failed, or what is damaged.
        adapted: whether it adapts a pretrained model, which is outside the rules.
    """

    path: str
    state: str
    recipe: str | None = None
    budget: str | None = None
    seed: int | None = None
    u: float | None = None
    heldout_loss: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None
    adapted: bool = False

    @property
    def state_text(self) -> str:
        """The state in words, such as ``stopped at 43 %``."""
        if self.state == "finished" or self.u is None:
            return self.state
        return f"{self.state} at {100 * self.u:.0f} %"

    @property
    def recipe_text(self) -> str:
        """The recipe, with a mark if the run is outside the rules."""
        return (self.recipe or "") + (" (outside the rules)" if self.adapted else "")

    @property
    def scores_text(self) -> str:
        """The scores in words, such as ``mean of rte, mrpc 66.0; BLiMP 61.2``."""
        return "; ".join(f"{name} {value:.1f}" for name, value in self.scores.items())


def list_runs(folder: Path) -> list[Listed]:
    """The runs in a folder and below it, sorted by path.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name one with runs in it")
    return [_listed(run, folder) for run in _found(folder)]


def _found(folder: Path) -> Iterator[Path]:
    """Folders of runs, without looking into them."""
    for path, folders, files in os.walk(folder):
        names = set(files)
        if ("config.json" in names and names & _MARKS) or names >= _LOG:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _listed(run: Path, folder: Path) -> Listed:
    path = str(run.relative_to(folder)) if run != folder else str(folder)
    try:
        return _read(run, path)
    except (InputError, OSError) as error:
        return Listed(path, "damaged", problem=str(error))


def _read(run: Path, path: str) -> Listed:
    config, summary = read_json(run / "config.json") or {}, read_summary(run)
    try:
        recipe, seed = str(config["recipe"]), int(config["seed"])
        budget = str(config["budget"]["limit"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{run / 'config.json'} is damaged: restore it from a copy") from error
    u = summary.u if summary else _spent(run)
    problem = None if summary else _failure(run, seed)
    state = "finished" if summary else "failed" if problem else "stopped"
    if is_locked(run):
        state, problem = "running", None
    loss = summary.heldout["loss@0.15"] if summary else None
    adapted, scores = config.get("adapts") is not None, dict(_scores(run))
    return Listed(path, state, recipe, budget, seed, u, loss, scores, problem, adapted)


def _spent(run: Path) -> float:
    try:
        return _finite((last_record(run / "metrics.jsonl") or {}).get("u"))
    except ValueError:  # nothing was logged yet
        return 0.0


def _failure(run: Path, seed: int) -> str | None:
    """Why a run failed, by its own last event or the study that it belongs to."""
    last = last_record(run / "events.jsonl") or {}
    if last.get("event") in ("diverged", "over"):
        return str(last.get("reason"))
    study = read_json(run.parent / "study.json") or {}
    try:
        entry = study["arms"][run.name.removesuffix(f"-{seed}")]["runs"][str(seed)]
        return str(entry["failed"])
    except (KeyError, TypeError):
        return None


def _scores(run: Path) -> Iterator[tuple[str, float]]:
    """The means of each suite, or its tasks if it has no mean; and BLiMP.

    Scores by another protocol than the run's own are named after it; see also `of_all_suites`.
    """
    for file in sorted(run.glob("evaluation*/scores.json")):
        by = file.parent.name.removeprefix("evaluation").removeprefix("-")
        try:
            suites = (read_json(file) or {})["suites"]
            found = of_all_suites({name: _of_suite(suite) for name, suite in suites.items()})
            for name, value in found.items():
                yield f"{name} by {by}" if by else name, _finite(value)
            if "blimp" in suites:  # which no protocol changes
                yield "BLiMP", _finite(suites["blimp"]["blimp"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file} is damaged: restore it from a copy") from error


def _of_suite(suite: Mapping[str, Any]) -> dict[str, Any]:
    """The means of a suite, or else its tasks."""
    means = {mean["name"]: mean["value"] for mean in suite.get("means", ())}
    tasks = suite.get("tasks", {}).items()
    return means or {task: score["median"] for task, score in tasks if "median" in score}


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{value!r} is not a number")
    return float(value)
