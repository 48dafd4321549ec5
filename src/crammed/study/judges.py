"""What the runs of a study are judged by besides held-out loss, which every run measures itself.

``blimp`` and the tasks of GLUE, as ``glue`` or ``glue.cola``, are scored by ``crammed evaluate``
after training; ``glue.cola@bert-base`` is fine-tuned by that protocol. ``study.json`` holds the
scores of a run by name, in percent: ``blimp``, ``glue.cola``, ``untrained.glue.cola`` for the
untrained twin that was fine-tuned beside it, and ``glue``, the mean over the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crammed.errors import InputError
from crammed.evaluation.protocol import load_protocol
from crammed.files.hashes import json_hash
from crammed.files.writing import read_json
from crammed.hints import did_you_mean
from crammed.tasks.read import tasks_in
from crammed.tasks.task import load_suite

HELDOUT, BLIMP, GLUE = "heldout", "blimp", "glue"
NOTHING: Mapping[str, Path] = MappingProxyType({})
_UNTRAINED = "untrained."


@dataclass(frozen=True)
class Judge:
    """A suite that ``crammed evaluate`` scores a run on.

    Attributes:
        suite: ``blimp`` or ``glue``.
        data: its file or folder.
        tasks: those of GLUE to score.
        protocol: name or file of the fine-tuning protocol; None is the run's own.
    """

    suite: str
    data: Path
    tasks: tuple[str, ...] = ()
    protocol: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores that it gives."""
        of_tasks = tuple(f"{self.suite}.{task}{self.by}" for task in self.tasks)
        return of_tasks or (self.name,)

    @property
    def name(self) -> str:
        """Its name, unique among the judges of a study."""
        return f"{self.suite}{self.by}"

    @property
    def by(self) -> str:
        """The suffix of the names of its scores."""
        return "" if self.protocol is None else f"@{Path(self.protocol).stem}"

    def folder(self, run: Path) -> Path:
        """The folder of a run's evaluation by its protocol."""
        return run / f"evaluation{self.by.replace('@', '-')}"

    def is_missing(self, run: Mapping[str, Any]) -> bool:
        """Whether a run of ``study.json`` lacks a score that this judge gives."""
        return bool(self.lacks(run.get("scores", {})))

    def lacks(self, scores: Mapping[str, Any]) -> list[str]:
        """The names of its scores that are missing from these."""
        return [name for name in self.names if not any(_is_of(each, name) for each in scores)]

    def words(self, run: Path, device: str) -> list[str]:
        """What to type after ``python`` to have a run judged."""
        words = ["-m", "crammed", "evaluate", str(run), "--suite", self.suite]
        words += ["--data", str(self.data), "--device", device, "--json"]
        words += ["--protocol", self.protocol] if self.protocol is not None else []
        return [*words, "--tasks", ",".join(self.tasks)] if self.tasks else words

    def state(self) -> str:
        """A hash that changes with the names and the sizes of its data."""
        files = [self.data] if self.data.is_file() else sorted(self.data.rglob("*"))
        sizes = [(file.name, file.stat().st_size) for file in files if file.is_file()]
        return json_hash(sizes)


def judges_of(
    names: Iterable[str],
    blimp: Path | None = None,
    glue: Path | None = None,
    declared: Mapping[str, Path] = NOTHING,
) -> list[Judge]:
    """The judges with these names, whose data must exist.

    Args:
        names: from ``heldout``, ``blimp``, ``glue`` and ``glue.TASK``; the last two may end with
            ``@PROTOCOL``, as `load_protocol` takes it.
        blimp: sentence pairs, a file or a folder; `glue` is a folder of tasks.
        declared: data by suite, used where `blimp` or `glue` is None; judges need not use all.

    Raises:
        InputError: an unknown name or protocol, data that is missing, or that no judge asks for.
    """
    suite = load_suite(GLUE)
    known = [HELDOUT, BLIMP, GLUE, *(f"{GLUE}.{task}" for task in suite.tasks)]
    wanted = list(dict.fromkeys(names))
    tasks: dict[str | None, list[str]] = {}
    for name in wanted:
        kind, at, protocol = name.partition("@")
        if kind not in known:
            hint = did_you_mean(kind, known)
            raise InputError(f"no judge {kind!r}: {hint}choose from {', '.join(known)}")
        if kind.startswith(GLUE):
            tasks.setdefault(_protocol(protocol) if at else None, []).append(kind.partition(".")[2])
        elif at:
            raise InputError(f"{name}: {kind} fine-tunes nothing, and so has no protocol")
    _refuse_same_names(tasks)
    judges = []
    if BLIMP in wanted:
        judges.append(Judge(BLIMP, _data(BLIMP, blimp or declared.get(BLIMP), "FILE")))
    if tasks:
        folder = _data(GLUE, glue or declared.get(GLUE), "DIR")
        there = tasks_in(suite, folder)
        every = {task for own in tasks.values() for task in own if task}
        if missing := sorted(every - set(there)):
            raise InputError(
                f"{folder} has no task {', '.join(missing)}: it has {', '.join(there)}"
            )
        judges += [
            Judge(GLUE, folder, tuple(there if "" in own else own), protocol)
            for protocol, own in tasks.items()
        ]
    for option, data, used in (("--blimp", blimp, BLIMP in wanted), ("--glue", glue, bool(tasks))):
        if data is not None and not used:
            raise InputError(f"{option} names data that no judge uses: add it to --judges")
    return judges


def _refuse_same_names(protocols: Iterable[str | None]) -> None:
    """Refuse protocols whose scores would have the same names."""
    stems = [Path(each).stem for each in protocols if each is not None]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(f"two protocols of judges are called {twice[0]}: rename one of the files")


def _data(suite: str, data: Path | None, kind: str) -> Path:
    if data is None:
        raise InputError(f"the judge {suite} needs its data: give --{suite} {kind}")
    if not data.exists():
        raise InputError(f"no {suite} data at {data}: name a {kind} that exists with --{suite}")
    return data.absolute()


def _protocol(name: str) -> str:
    """The name of a built-in protocol, or the absolute path of a protocol's file."""
    load_protocol(name)
    return str(Path(name).absolute()) if Path(name).suffix else name


def scores_of(run: Path, judge: Judge) -> dict[str, float]:
    """The scores that a judge has given a run, by their names in ``study.json``."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return {BLIMP: given[BLIMP]} if BLIMP in given else {}
    found: dict[str, float] = {}
    for name, entry in given.get("tasks", {}).items():
        if any(_is_of(score := f"{GLUE}.{name}{judge.by}", each) for each in judge.names):
            found |= _both(score, entry, "median")
    means = given.get("means", [])
    if means and {f"{GLUE}.{name}{judge.by}" for name in means[0]["of"]} <= found.keys():
        found |= _both(f"{GLUE}{judge.by}", means[0], "value")
    return found


def with_scores(
    before: Mapping[str, Any], given: Mapping[str, float], judge: Judge
) -> dict[str, Any]:
    """The scores of a run, with those that a judge has given it.

    The mean is dropped if a task has no score: it would be over fewer tasks than in other runs.
    """
    if judge.suite != GLUE or not given:
        return {**before, **given}
    mean = f"{GLUE}{judge.by}"
    kept = _without(mean, given) if judge.lacks(given) else given
    return {**_without(mean, before), **kept}


def _without(mean: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in scores.items() if name.removeprefix(_UNTRAINED) != mean}


def _given(run: Path, judge: Judge) -> dict[str, Any]:
    """The scores of a suite in a run's evaluation folder; empty if the file is damaged."""
    try:
        suites = (read_json(judge.folder(run) / "scores.json") or {}).get("suites", {})
        given = dict(suites.get(judge.suite, {}))
        tasks = {name: dict(entry) for name, entry in given.get("tasks", {}).items()}
    except (InputError, AttributeError, TypeError, ValueError):  # `crammed evaluate` has said so
        return {}
    return {**given, "tasks": tasks}


def _is_of(score: str, name: str) -> bool:
    """Whether a score is one of a task's, which may be several: ``mnli`` and ``mnli-mm``."""
    (score, _, given), (task, _, wanted) = score.partition("@"), name.partition("@")
    return given == wanted and (score == task or score.startswith(f"{task}-"))


def _both(name: str, entry: Mapping[str, Any], key: str) -> dict[str, float]:
    """A score, and that of the untrained twin."""
    untrained = entry.get("untrained")
    twin = untrained.get(key) if isinstance(untrained, Mapping) else untrained
    found = {name: entry.get(key), f"{_UNTRAINED}{name}": twin}
    return {each: value for each, value in found.items() if value is not None}


def unscored(run: Path, judge: Judge, scores: Mapping[str, Any], fault: str) -> dict[str, str]:
    """Why a run lacks scores that a judge should have given, by the names of the scores.

    Args:
        fault: why the judge failed, for tasks that do not say.
    """
    tasks = _given(run, judge).get("tasks", {})
    return {
        name: tasks.get(name.partition("@")[0].partition(".")[2], {}).get("failed") or fault
        for name in judge.lacks(scores)
    }


def stale_suites(judges: Sequence[Judge], before: Mapping[str, str]) -> list[str]:
    """The suites whose data has changed.

    Args:
        before: the `Judge.state` of each suite when runs were judged.
    """
    return [each.suite for each in judges if before.get(each.suite) not in (None, each.state())]


def without_stale(run: dict[str, Any], stale: Sequence[str]) -> dict[str, Any]:
    """A run of ``study.json`` without its scores by these suites."""
    if "scores" not in run:
        return run
    kept = {
        name: value
        for name, value in run["scores"].items()
        if re.split("[.@]", name.removeprefix(_UNTRAINED))[0] not in stale
    }
    return {**run, "scores": kept}
