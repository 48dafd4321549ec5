"""What the runs of a study are judged by besides held-out loss, which every run measures itself.

``blimp`` and the tasks of GLUE, as ``glue`` or ``glue.cola``, are scored by ``crammed evaluate``
after training; ``glue.cola@bert-base`` is fine-tuned by that protocol. ``study.json`` holds the
scores of a run by name, in percent: ``blimp``, ``glue.cola``, ``untrained.glue.cola`` for the
untrained twin that was fine-tuned beside it, and ``glue``, the mean over the tasks.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crammed.errors import InputError
from crammed.evaluation.protocol import load_protocol
from crammed.evaluation.scores.score import means_over
from crammed.files.hashes import json_hash, sha256
from crammed.files.writing import read_json
from crammed.hints import did_you_mean
from crammed.study.result import Arm, Run, StudyResult
from crammed.tasks.read import tasks_in
from crammed.tasks.task import load_suite

HELDOUT, BLIMP, GLUE = "heldout", "blimp", "glue"
NOTHING: Mapping[str, Path] = MappingProxyType({})
TWINS = "untrained"
"""The folder of a study that holds what untrained models predict."""
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
        return run / f"evaluation{self.by.replace('@', '-', 1)}"

    def lacks(self, scores: Mapping[str, float]) -> list[str]:
        """The names of its scores that are missing from these."""
        return [name for name in self.names if not any(_is_of(each, name) for each in scores)]

    def words(self, run: Path, device: str) -> list[str]:
        """What to type after ``python`` to have a run judged.

        The runs of a study share their untrained twins, in a folder beside them.
        """
        words = ["-m", "crammed", "evaluate", str(run), "--suite", self.suite]
        words += ["--data", str(self.data), "--device", device, "--json"]
        words += ["--protocol", self.protocol] if self.protocol is not None else []
        if self.tasks:
            words += ["--tasks", ",".join(self.tasks), "--untrained-in", str(run.parent / TWINS)]
        return words

    def state(self) -> str:
        """A hash of its data."""
        files = [self.data] if self.data.is_file() else sorted(self.data.rglob("*"))
        named = [(str(f.relative_to(self.data)), f) for f in files if f.is_file()]
        return json_hash([(name, sha256(file)) for name, file in named])

    def protocol_hash(self) -> str | None:
        """A hash of the whole protocol; None if it is each run's own."""
        if self.protocol is None:
            return None
        return json_hash(load_protocol(self.protocol).model_dump(mode="json"))


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
    if not Path(name).suffix:
        load_protocol(name)
        return name
    file = str(Path(name).expanduser().absolute())
    load_protocol(file)
    return file


def scores_of(run: Path, judge: Judge) -> dict[str, float]:
    """The scores that a judge has given a run, by their names in ``study.json``."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return {BLIMP: given[BLIMP]} if BLIMP in given else {}
    found: dict[str, float] = {}
    for name, entry in given.get("tasks", {}).items():
        if any(_is_of(score := f"{GLUE}.{name}{judge.by}", each) for each in judge.names):
            found |= _both(score, entry)
    return found


def partial_scores(run: Path, judge: Judge) -> list[str]:
    """Those of the scores that a judge has given a run that are of part of the official data."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return [BLIMP] if given.get("official") is False else []
    tasks = given.get("tasks", {}).items()
    return [f"{GLUE}.{name}{judge.by}" for name, each in tasks if each.get("official") is False]


def with_scores(
    before: Mapping[str, float], given: Mapping[str, float], judge: Judge
) -> dict[str, float]:
    """The scores of a run, with those that a judge has given it.

    The mean is over the tasks of this judge, so that it is of the same tasks in all runs. It is
    missing if a task has no score, or if there is only one.
    """
    scores = {**before, **given}
    if judge.suite != GLUE:
        return scores
    kept = {k: v for k, v in scores.items() if k.removeprefix(_UNTRAINED) != judge.name}
    if judge.lacks(kept):
        return kept
    return {**kept, **_means(kept, judge)}


def with_same_means(arms: dict[str, Arm], judges: Iterable[Judge]) -> dict[str, Arm]:
    """The arms with all means over the tasks of these judges, which are about to score others."""
    asked = {judge.name: judge for judge in judges}
    for run in (run for arm in arms.values() for run in arm.runs.values() if run.scores):
        for judge in asked.values():
            run.scores = with_scores(run.scores, {}, judge)
    return arms


def _means(scores: Mapping[str, float], judge: Judge) -> dict[str, float]:
    """The mean over a judge's tasks, and that of the untrained twins."""
    found: dict[str, float] = {}
    for kind in ("", _UNTRAINED):
        own = {
            name.removeprefix(kind).partition("@")[0].removeprefix(f"{GLUE}."): value
            for name, value in scores.items()
            if name.startswith(kind)
            and any(_is_of(name.removeprefix(kind), n) for n in judge.names)
        }
        for _, of, _ in means_over(load_suite(GLUE), own)[:1]:
            found[f"{kind}{judge.name}"] = statistics.fmean(own[each] for each in of)
    return found


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


def _both(name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """A task's score, and that of the untrained twin."""
    found = {name: entry, f"{_UNTRAINED}{name}": entry.get("untrained") or {}}
    return {each: of["median"] for each, of in found.items() if of.get("median") is not None}


def unscored(run: Path, judge: Judge, scores: Mapping[str, float], fault: str) -> dict[str, str]:
    """Why a run lacks scores that a judge should have given, by the names of the scores.

    Args:
        fault: why the judge failed, for tasks that do not say.
    """
    tasks = _given(run, judge).get("tasks", {})
    return {
        name: tasks.get(name.partition("@")[0].partition(".")[2], {}).get("failed") or fault
        for name in judge.lacks(scores)
    }


def refuse_changed_protocols(judges: Sequence[Judge], study: StudyResult, out: Path) -> None:
    """Check that the runs of the study in a folder were scored by the protocols of judges.

    Raises:
        InputError: a protocol's file has changed since then, or a file is in place of the folder
            of shared twins.
    """
    if any(judge.tasks for judge in judges) and (out / TWINS).is_file():
        raise InputError(f"{out / TWINS} must be a folder: remove the file")
    runs = [run for arm in study.arms.values() for run in arm.runs.values()]
    for judge in judges:
        scored = any(out.glob(f"*/{judge.folder(out).name}/evaluation.json")) or any(
            judge.lacks(run.scores) != list(judge.names) for run in runs
        )
        if scored and study.protocols.get(judge.name) not in (None, judge.protocol_hash()):
            raise InputError(
                f"{judge.protocol} has changed since runs were scored by it: give what it holds "
                "now another name, or restore it"
            )


def stale_suites(judges: Sequence[Judge], before: Mapping[str, str]) -> list[str]:
    """The suites whose data has changed.

    Args:
        before: the `Judge.state` of each suite when runs were judged.
    """
    known = {each.suite: each for each in judges if each.suite in before}
    return [suite for suite, each in known.items() if before[suite] != each.state()]


def without_stale(run: Run, stale: Sequence[str]) -> Run:
    """A run without its scores by these suites."""
    kept = {
        name: value
        for name, value in run.scores.items()
        if re.split("[.@]", name.removeprefix(_UNTRAINED))[0] not in stale
    }
    return run.model_copy(update={"scores": kept}) if run.scores else run
