"""What the runs of a study are judged by besides held-out loss, which every run measures itself.

``blimp`` and the tasks of a suite, as ``glue``, ``glue.cola`` or ``mine.yaml.topics``, are scored
by ``crammed evaluate`` after training; ``glue.cola@bert-base`` is fine-tuned by that protocol.
``study.json`` holds the scores of a run by name, in percent: ``blimp``, ``glue.cola``,
``untrained.glue.cola`` for the untrained twin that was fine-tuned beside it, and ``glue``, the mean
over the tasks.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.evaluation.protocol import load_protocol
from crammed.evaluation.scores.score import means_over
from crammed.files.folders import expanded
from crammed.files.hashes import json_hash, sha256
from crammed.files.writing import read_json
from crammed.hints import did_you_mean
from crammed.study.result import UNTRAINED, Arm, StudyResult, is_own
from crammed.study.spec.judging import OWN, parted
from crammed.tasks.pairs import read_pairs
from crammed.tasks.read import all_tasks, tasks_in
from crammed.tasks.task import load_suite, suite_names

HELDOUT, BLIMP, TASKS = "heldout", "blimp", "tasks"
TWINS = "untrained"
"""The folder of a study that holds what untrained models predict."""


@dataclass(frozen=True)
class Judge:
    """A suite that ``crammed evaluate`` scores a run on.

    Attributes:
        suite: ``blimp``, or a suite of tasks, as `load_suite` takes it.
        data: its file or folder.
        tasks: those of the suite to score.
        protocol: name or file of the fine-tuning protocol; None is the run's own.
    """

    suite: str
    data: Path
    tasks: tuple[str, ...] = ()
    protocol: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks that it scores, each of which may give several scores."""
        of_tasks = tuple(self.score(task) for task in self.tasks)
        return of_tasks or (self.name,)

    @property
    def label(self) -> str:
        """What the names of its scores begin with."""
        return Path(self.suite).stem

    def score(self, task: str) -> str:
        return f"{self.label}.{task}{self.by}"

    @property
    def name(self) -> str:
        """Its name, unique among the judges of a study."""
        return f"{self.label}{self.by}"

    @property
    def by(self) -> str:
        return "" if self.protocol is None else f"@{Path(self.protocol).stem}"

    def folder(self, run: Path) -> Path:
        """The folder of a run's evaluation by its protocol."""
        return run / f"evaluation{self.by.replace('@', '-', 1)}"

    def lacks(self, scores: Mapping[str, float]) -> list[str]:
        """The names of its scores that are missing from these."""
        return [name for name in self.names if not any(self.is_of(each, name) for each in scores)]

    @cached_property
    def _tasks_of(self) -> dict[str, str]:
        """Score -> the task that gives it, as ``mnli-mm`` is given by ``mnli``; both by name."""
        tasks = () if self.suite == BLIMP else load_suite(self.suite).tasks.values()
        return {self.score(each): self.score(task.name) for task in tasks for each in task.numbers}

    def is_of(self, score: str, name: str) -> bool:
        """Whether a score is one of those that a task gives."""
        return self._tasks_of.get(score, score) == name

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
        """A hash of its data, and of a suite of the user's own."""
        files = [self.data] if self.data.is_file() else sorted(_files_below(self.data))
        named = [(str(file.relative_to(self.data)), file) for file in files]
        if Path(self.suite).suffix:
            named.append((self.label, Path(self.suite)))
        return json_hash([(name, sha256(file)) for name, file in named])

    def check_data(self) -> None:
        """Read its data, whose faults would end the judging of every run.

        Raises:
            InputError: the data of a task is missing or wrong.
        """
        from crammed.evaluation.evaluation import read_tasks

        if self.suite == BLIMP:
            read_pairs(self.data)
            return
        suite, protocol = load_suite(self.suite), load_protocol(self.protocol or "cramming")
        file = self.suite if Path(self.suite).suffix else None
        read_tasks(suite, [suite.tasks[name] for name in self.tasks], self.data, protocol, file)

    def protocol_hash(self) -> str | None:
        """A hash of the whole protocol; None if it is each run's own."""
        if self.protocol is None:
            return None
        return json_hash(load_protocol(self.protocol).model_dump(mode="json"))


def judges_of(
    names: Iterable[str],
    blimp: Path | None = None,
    tasks: Path | None = None,
    declared: Mapping[str, Path] | None = None,
) -> list[Judge]:
    """The judges with these names, whose data must exist.

    Args:
        names: see `crammed.study.spec.judging`; a suite is one that `load_suite` takes, and a
            protocol one that `load_protocol` takes.
        blimp: sentence pairs, a file or a folder; `tasks` is the folder of all tasks.
        declared: data used where these two are None; judges need not use it.

    Raises:
        InputError: an unknown name or protocol, data that is missing, or that no judge asks for.
    """
    wanted, declared = list(dict.fromkeys(names)), declared or {}
    asked: dict[tuple[str, str | None], list[str]] = {}
    for name in wanted:
        kind, at, protocol = parted(name)
        if kind not in (HELDOUT, BLIMP):
            suite, task = _suite_and_task(kind)
            asked.setdefault((suite, _protocol(protocol) if at else None), []).append(task)
        elif at:
            raise InputError(f"{name}: {kind} fine-tunes nothing, and so has no protocol")
    _refuse_same_names("protocols", {protocol for _, protocol in asked})
    _refuse_same_names("suites", {BLIMP, *(suite for suite, _ in asked)})
    judges = []
    if BLIMP in wanted:
        judges.append(Judge(BLIMP, _data(BLIMP, "--blimp FILE", blimp or declared.get(BLIMP))))
    for (suite, by), own in asked.items():
        folder = _data(Path(suite).stem, "--tasks-data DIR", tasks or declared.get(TASKS))
        loaded = load_suite(suite)
        whole = "" in own and Path(suite).suffix  # of the user's own suite
        there = all_tasks(loaded, folder, None) if whole else tasks_in(loaded, folder)
        if missing := sorted({task for task in own if task} - set(there)):
            raise InputError(
                f"{folder} has no task {', '.join(missing)}: it has {', '.join(there)}"
            )
        judges.append(Judge(suite, folder, tuple(there if "" in own else own), by))
    used = (("--blimp", blimp, BLIMP in wanted), ("--tasks-data", tasks, bool(asked)))
    for option, data, needed in used:
        if data is not None and not needed:
            raise InputError(
                f"{option} names data that no judge uses: name a judge that does with --judges, "
                f"or leave {option} out"
            )
    return judges


def check_data(judges: Iterable[Judge], known: Mapping[str, str], scored: Iterable[str]) -> None:
    """Read the data of judges, so that its faults are known before anything is trained.

    Args:
        known: the `Judge.state` of suites whose data runs have been judged with.
        scored: the names of the scores that runs have: others are of tasks not read so far.

    Raises:
        InputError: as `Judge.check_data`.
    """
    there = dict.fromkeys(scored, 0.0)
    for judge in judges:
        if judge.lacks(there) or known.get(judge.label) != judge.state():
            judge.check_data()


def _suite_and_task(kind: str) -> tuple[str, str]:
    """``glue.cola`` -> (``glue``, ``cola``); all tasks of a suite are an empty name."""
    if own := OWN.fullmatch(kind):
        suite, task = str(expanded(own[1]).absolute()), own[2] or ""
        # In the names of scores, a dot ends that of the suite, and an @ precedes a protocol's.
        if {".", "@"} & set(stem := Path(suite).stem):
            raise InputError(
                f"{suite}: a judge's file may have no other dot and no @ in its name: rename it"
            )
        if is_own(stem):
            raise InputError(f"{suite}: a study has results called {stem} of its own: rename it")
    else:
        suite, _, task = kind.partition(".")
        if suite not in suite_names():
            known = [HELDOUT, BLIMP, *suite_names()]
            choose = f"choose from {', '.join(known)} and FILE.yaml"
            raise InputError(f"no judge {kind!r}: {did_you_mean(suite, known)}{choose}")
    tasks = load_suite(suite).tasks
    if task and task not in tasks:
        hint = did_you_mean(task, tasks)
        raise InputError(f"no judge {kind!r}: {hint}tasks are {', '.join(tasks)}")
    return suite, task


def _refuse_same_names(what: str, given: Iterable[str | None]) -> None:
    """Refuse protocols or suites whose scores would have the same names."""
    stems = [Path(each).stem for each in given if each is not None]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(f"two {what} of judges are called {twice[0]}: rename one of the files")


def _data(name: str, option: str, data: Path | None) -> Path:
    if data is None:
        raise InputError(f"the judge {name} needs its data: give {option}")
    if not data.exists():
        kind, word = option.split()
        raise InputError(f"no {name} data at {data}: name a {word} that exists with {kind}")
    return data.absolute()


def _files_below(folder: Path) -> set[Path]:
    """All files below a folder, also through links, which may lead back to where they are."""
    files, roots, seen = set[Path](), [folder], set[Path]()
    for root in roots:
        if root.resolve() not in seen:
            seen.add(root.resolve())
            below = sorted(root.rglob("*"))
            files.update(each for each in below if each.is_file())
            roots += [each for each in below if each.is_symlink() and each.is_dir()]
    return files


def _protocol(name: str) -> str:
    named = str(expanded(name).absolute()) if Path(name).suffix else name
    load_protocol(named)
    return named


def scores_of(run: Path, judge: Judge) -> dict[str, float]:
    """The scores that a judge has given a run, by their names in ``study.json``."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return {BLIMP: given[BLIMP]} if BLIMP in given else {}
    found: dict[str, float] = {}
    for name, entry in given.get("tasks", {}).items():
        if any(judge.is_of(score := judge.score(name), each) for each in judge.names):
            twin = entry.get("untrained") or {}
            for each, of in ((score, entry), (f"{UNTRAINED}{score}", twin)):
                if of.get("median") is not None:
                    found[each] = of["median"]
    return found


def partial_scores(run: Path, judge: Judge) -> list[str]:
    """Those of the scores that a judge has given a run that are of part of the official data."""
    given = _given(run, judge)
    if judge.suite == BLIMP:
        return [BLIMP] if given.get("official") is False else []
    tasks = given.get("tasks", {}).items()
    return [judge.score(name) for name, each in tasks if each.get("official") is False]


def with_scores(
    before: Mapping[str, float], given: Mapping[str, float], judge: Judge
) -> dict[str, float]:
    """The scores of a run, with those that a judge has given it.

    The mean is over the tasks of this judge, so that it is of the same tasks in all runs. It is
    missing if a task has no score, or if there is only one.
    """
    scores = {**before, **given}
    if judge.suite == BLIMP:
        return scores
    kept = {k: v for k, v in scores.items() if k.removeprefix(UNTRAINED) != judge.name}
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
    """The mean over a judge's tasks, and that of the untrained twins if it is over the same.

    A suite may define over which tasks; otherwise it is over all that the judge scores.
    """
    suite = load_suite(judge.suite)
    own, untrained = (
        {
            name.removeprefix(kind).partition("@")[0].removeprefix(f"{judge.label}."): value
            for name, value in scores.items()
            if name.startswith(kind)
            and any(judge.is_of(name.removeprefix(kind), each) for each in judge.names)
        }
        for kind in ("", UNTRAINED)
    )
    means = [of for _, of, _ in means_over(suite, own)[:1]] if suite.means else [tuple(own)]
    found: dict[str, float] = {}
    for of in (each for each in means if len(each) > 1):
        found[judge.name] = statistics.fmean(own[each] for each in of)
        if untrained.keys() >= set(of):
            floor = statistics.fmean(untrained[each] for each in of)
            found[f"{UNTRAINED}{judge.name}"] = floor
    return found


def _given(run: Path, judge: Judge) -> dict[str, Any]:
    """The scores of a suite in a run's evaluation folder; empty if the file is damaged."""
    try:
        suites = (read_json(judge.folder(run) / "scores.json") or {}).get("suites", {})
        given = dict(suites.get(judge.label, {}))
        tasks = {name: dict(entry) for name, entry in given.get("tasks", {}).items()}
    except (InputError, AttributeError, TypeError, ValueError):  # `crammed evaluate` has said so
        return {}
    return {**given, "tasks": tasks}


def unscored(run: Path, judge: Judge, scores: Mapping[str, float], fault: str) -> dict[str, str]:
    """Why a run lacks scores that a judge should have given, by the names of the scores.

    Args:
        fault: why the judge failed, for tasks that do not say.
    """
    tasks = _given(run, judge).get("tasks", {})
    failed = {judge.score(name): each["failed"] for name, each in tasks.items() if "failed" in each}
    return {
        name: next((why for score, why in failed.items() if judge.is_of(score, name)), fault)
        for name in judge.lacks(scores)
    }


def refuse_changed_protocols(judges: Sequence[Judge], study: StudyResult, out: Path) -> None:
    """Check that the runs of the study in a folder were scored by the protocols of judges.

    Raises:
        InputError: a protocol's file has changed since then, or a file is in the place of `TWINS`.
    """
    if any(judge.tasks for judge in judges) and (out / TWINS).is_file():
        raise InputError(f"{out / TWINS} must be a folder: remove the file")
    for judge in judges:
        scored = any(out.glob(f"*/{judge.folder(out).name}/evaluation.json")) or any(
            judge.lacks(run.scores) != list(judge.names) for run in study.runs()
        )
        if scored and study.protocols.get(judge.name) not in (None, judge.protocol_hash()):
            raise InputError(
                f"{judge.protocol} has changed since runs were scored with it: save the new "
                "version under another name, or restore the old one"
            )


def drop_stale(arms: Mapping[str, Arm], judges: Iterable[Judge], before: Mapping[str, str]) -> None:
    """Drop the scores by suites whose data is not in the state that it had `before`."""
    known = {each.label: each for each in judges if each.label in before}
    stale = {suite for suite, each in known.items() if before[suite] != each.state()}
    for run in (run for arm in arms.values() for run in arm.runs.values() if run.scores):
        run.scores = {
            name: value
            for name, value in run.scores.items()
            if re.split("[.@]", name.removeprefix(UNTRAINED))[0] not in stale
        }
