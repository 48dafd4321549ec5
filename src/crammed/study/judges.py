"""What the runs of a study are judged by besides held-out loss, which every run measures itself.

``blimp`` and the tasks of GLUE, as ``glue`` or ``glue.cola``, are scored by ``crammed evaluate``
after training. A run keeps them in ``study.json`` as numbers by name, in percent: ``blimp``,
``glue.cola``, ``untrained.glue.cola`` for the untrained twin that was fine-tuned beside it, and
``glue``, the mean over the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files import json_hash, read_json
from crammed.hints import did_you_mean
from crammed.tasks.read import tasks_in
from crammed.tasks.task import load_suite

HELDOUT, BLIMP, GLUE = "heldout", "blimp", "glue"
_UNTRAINED = "untrained."


@dataclass(frozen=True)
class Judge:
    """A suite that ``crammed evaluate`` scores a run on.

    Attributes:
        suite: ``blimp`` or ``glue``.
        data: its file or folder.
        tasks: of GLUE.
    """

    suite: str
    data: Path
    tasks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what it gives."""
        return tuple(f"{self.suite}.{task}" for task in self.tasks) or (self.suite,)

    def is_missing(self, run: Mapping[str, Any]) -> bool:
        """Whether a run of ``study.json`` lacks something that this judge gives."""
        return bool(self.lacks(run.get("scores", {})))

    def lacks(self, scores: Mapping[str, Any]) -> list[str]:
        """The names of what it gives that are not among the scores."""
        return [name for name in self.names if not any(_is_of(each, name) for each in scores)]

    def words(self, run: Path, device: str) -> list[str]:
        """What to type after ``python`` to have a run judged."""
        words = ["-m", "crammed", "evaluate", str(run), "--suite", self.suite]
        words += ["--data", str(self.data), "--device", device, "--json"]
        return [*words, "--tasks", ",".join(self.tasks)] if self.tasks else words

    def state(self) -> str:
        """A hash that changes with the names and the sizes of its data."""
        files = [self.data] if self.data.is_file() else sorted(self.data.rglob("*"))
        sizes = [(file.name, file.stat().st_size) for file in files if file.is_file()]
        return json_hash(sizes)


def judges_of(
    names: Iterable[str], blimp: Path | None = None, glue: Path | None = None
) -> list[Judge]:
    """The judges with these names, whose data has to be there.

    Args:
        names: out of ``heldout``, ``blimp``, ``glue`` and ``glue.TASK``.
        blimp: sentence pairs, a file or a folder, and `glue` a folder of tasks.

    Raises:
        InputError: an unknown name, data that is missing, or that no judge asks for.
    """
    suite = load_suite(GLUE)
    known = [HELDOUT, BLIMP, GLUE, *(f"{GLUE}.{task}" for task in suite.tasks)]
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"no judge {name!r}: {hint}choose from {', '.join(known)}")
    judges = []
    if BLIMP in wanted:
        judges.append(Judge(BLIMP, _data(BLIMP, blimp, "FILE")))
    tasks = [name.partition(".")[2] for name in wanted if name.startswith(GLUE)]
    if tasks:
        folder = _data(GLUE, glue, "DIR")
        there = tasks_in(suite, folder)
        if missing := [task for task in tasks if task and task not in there]:
            raise InputError(
                f"{folder} has no task {', '.join(missing)}: it has {', '.join(there)}"
            )
        judges.append(Judge(GLUE, folder, tuple(there if "" in tasks else tasks)))
    for option, data, used in (("--blimp", blimp, BLIMP in wanted), ("--glue", glue, bool(tasks))):
        if data is not None and not used:
            raise InputError(f"{option} names data that no judge uses: add it to --judges")
    return judges


def _data(suite: str, data: Path | None, kind: str) -> Path:
    if data is None:
        raise InputError(f"the judge {suite} needs its data: give --{suite} {kind}")
    if not data.exists():
        raise InputError(f"no {suite} data at {data}: name a {kind} that exists with --{suite}")
    return data.absolute()


def scores_of(run: Path, judge: Judge) -> dict[str, float]:
    """What a judge has given a run, by the names that ``study.json`` has for it."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return {BLIMP: given[BLIMP]} if BLIMP in given else {}
    found: dict[str, float] = {}
    for name, entry in given.get("tasks", {}).items():
        if any(_is_of(f"{GLUE}.{name}", each) for each in judge.names):
            found |= _both(f"{GLUE}.{name}", entry, "median")
    means = given.get("means", [])
    if means and {f"{GLUE}.{name}" for name in means[0]["of"]} <= found.keys():
        found |= _both(GLUE, means[0], "value")
    return found


def _given(run: Path, judge: Judge) -> dict[str, Any]:
    """The scores of a suite in a run's evaluation folder; none of a file that is damaged."""
    try:
        suites = (read_json(run / "evaluation" / "scores.json") or {}).get("suites", {})
        given = dict(suites.get(judge.suite, {}))
        tasks = {name: dict(entry) for name, entry in given.get("tasks", {}).items()}
    except (InputError, AttributeError, TypeError, ValueError):  # `crammed evaluate` has said so
        return {}
    return {**given, "tasks": tasks}


def _is_of(score: str, name: str) -> bool:
    """Whether a score is that of a task, which may have several, as ``mnli`` and ``mnli-mm``."""
    return score == name or score.startswith(f"{name}-")


def _both(name: str, entry: Mapping[str, Any], key: str) -> dict[str, float]:
    """A score, and that of the untrained twin."""
    untrained = entry.get("untrained")
    twin = untrained.get(key) if isinstance(untrained, Mapping) else untrained
    found = {name: entry.get(key), f"{_UNTRAINED}{name}": twin}
    return {each: value for each, value in found.items() if value is not None}


def unscored(run: Path, judge: Judge, scores: Mapping[str, Any], fault: str) -> dict[str, str]:
    """Why a run lacks what a judge should have given, by name.

    Args:
        fault: how the judge ended.
    """
    tasks = _given(run, judge).get("tasks", {})
    return {
        name: tasks.get(name.partition(".")[2], {}).get("failed") or fault
        for name in judge.lacks(scores)
    }


def without_stale(
    run: dict[str, Any], judges: Sequence[Judge], before: Mapping[str, str]
) -> dict[str, Any]:
    """A run of ``study.json`` without what was judged on other data than now, or is to be tried.

    Args:
        before: the `Judge.state` of each suite when the run was judged.
    """
    stale = [each.suite for each in judges if before.get(each.suite) not in (None, each.state())]
    if "scores" not in run:
        return run
    kept = {
        name: value
        for name, value in run["scores"].items()
        if name.removeprefix(_UNTRAINED).partition(".")[0] not in stale
    }
    return {**run, "scores": kept}
