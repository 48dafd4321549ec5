"""Compares two models from their evaluation folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.damage import DAMAGE, whole
from crammed.evaluation.folder import read_gold, read_outputs, read_scores
from crammed.evaluation.scores.compare import Difference, compare, paired_difference, untested
from crammed.evaluation.scores.score import metric_words, metrics_of
from crammed.evaluation.scores.table import comparison_tables
from crammed.tasks.task import PAIRS, WITHOUT_FINETUNING, Suite, Task, load_suite, suite_names
from crammed.terminal.table import Printed

_DEFINING = ("kind", "text", "choices", "choice_text", "label", "group")
"""What of a task decides what models read and are scored on, beside the split of a score."""


@dataclass(frozen=True)
class Comparison:
    """Two models on a suite.

    Attributes:
        a, b: names of the models, or their folders of scores if the names are the same.
        entries: what `crammed.evaluation.scores.compare.compare` returns.
        notes: whether the models are the same, and why their differences were not tested.
        probed: whether nothing was fine-tuned, so that there are no seeds.
    """

    a: str
    b: str
    entries: list[dict[str, Any]]
    notes: list[str]
    probed: bool

    def json(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "numbers": self.entries, "notes": self.notes}

    def parts(self) -> list[Printed]:
        tables = comparison_tables(self.a, self.b, self.entries, probed=self.probed)
        return [*tables, Text("\n".join(self.notes))] if self.notes else tables


def check_other(a: Path, b: Path, suite: str) -> None:
    """Check that B can be compared with, before A is evaluated.

    Raises:
        InputError: B holds no scores of the suite, or is the folder of A.
    """
    if a.resolve() == b.resolve():
        raise InputError(f"A and B are both {a}: name two different evaluation folders")
    if suite in WITHOUT_FINETUNING:
        raise InputError(f"--compare does not take {suite}, which gives one number for each model")
    _scores_of(load_suite(suite), b)


def compare_models(a: Path, b: Path, suite: str) -> Comparison:
    """Compare the scores of a suite in two evaluation folders, one by one.

    Raises:
        InputError: a folder holds no scores of the suite, both are the same folder, or one is
            damaged.
    """
    with whole(a, b):
        try:
            return _compared(a, b, suite)
        except DAMAGE:
            for folder in (a, b):  # only a damaged one cannot be compared with itself
                with whole(folder):
                    differences(load_suite(suite), folder, folder)
            raise


def _compared(a: Path, b: Path, suite: str) -> Comparison:
    check_other(a, b, suite)
    loaded = load_suite(suite)
    one, other = (_scores_of(loaded, folder) for folder in (a, b))
    entries = differences(loaded, a, b)
    notes = []
    if one["model"]["sha256"] == other["model"]["sha256"]:
        notes.append("A and B are the same model: the hash of their files is the same")
    if apart := _apart(one["protocol"], other["protocol"]):
        concerned = {
            name
            for task in loaded.tasks.values()
            for name in task.numbers
            if task.has_pairs or [*apart] != ["pairs"]
        }
        entries = [
            untested(entry) if concerned & {entry["name"], *entry.get("of", ())} else entry
            for entry in entries
        ]
        if any("untested" in entry for entry in entries):
            notes.append(
                f"no interval and no p: {'; '.join(apart.values())}, which may account for the "
                "whole difference; evaluate both with the same protocol (--protocol FILE.yaml)"
            )
    names = one["model"]["name"], other["model"]["name"]
    if names[0] == names[1]:  # such as two that are called export
        names = str(a), str(b)
    return Comparison(*names, entries, notes, one["protocol"].get("probe") is not None)


def differences(suite: Suite, a: Path, b: Path) -> list[dict[str, Any]]:
    """The entries of `compare` on two folders that have scores of the suite, by any protocols."""
    folders = (a, b)
    tasks_a, tasks_b = (read_scores(folder)["suites"][suite.name]["tasks"] for folder in folders)
    found: dict[str, Difference] = {}
    # A stored score may belong to a task that has since been removed from the suite.
    reasons = dict.fromkeys(tasks_a, f"suite {suite.name} no longer has it")
    for task in suite.tasks.values():
        for name in task.numbers:
            if any("seeds" not in scores.get(name, {}) for scores in (tasks_a, tasks_b)):
                continue
            each = _difference(suite, task, name, folders, (tasks_a[name], tasks_b[name]))
            if isinstance(each, str):
                reasons[name] = each
            else:
                found[name] = each
    return compare(suite, tasks_a, tasks_b, found, reasons)


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, str]:
    """Where two protocols differ, in words by name.

    Texts that are alone are read alike whatever ``pairs`` is.
    """
    a, b = map(Protocol.in_full, (a, b))
    return {
        name: f"{name} is {a.get(name)} for A, {b.get(name)} for B"
        for name in dict.fromkeys((*a, *b))
        if a.get(name) != b.get(name)
    }


def _scores_of(suite: Suite, folder: Path) -> dict[str, Any]:
    scores = read_scores(folder)
    if suite.name in scores["suites"]:
        return scores
    lacks = f"{folder} holds no scores of {suite.name}"
    others = [name for name in scores["suites"] if name not in WITHOUT_FINETUNING]
    if not others:
        raise InputError(f"{lacks}: evaluate that model first (--data)")
    one = others[0] if others[0] in suite_names() else f"{others[0]}.yaml"
    raise InputError(
        f"{lacks}, but it has scores of {', '.join(others)}: "
        f"add --suite {one}, or evaluate that model on {suite.name} first (--data)"
    )


def _difference(
    suite: Suite,
    task: Task,
    name: str,
    folders: tuple[Path, Path],
    scores: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Difference | str:
    """The paired difference of one score, or why it cannot be computed."""
    if task.kind == PAIRS:
        return f"kind {PAIRS} has no seeds: see the scores of A and B"
    rows, described = read_gold(folders[0], suite.name, name)
    one, other = (score["metric"] for score in scores)
    if one != other:
        return f"A has {one}, B has {other}: evaluate both again"
    if one != (now := metric_words(task, name, described["labels"])):
        return f"both have {one}, and {suite.name} asks for {now} now: evaluate both again"
    other_rows, other_described = read_gold(folders[1], suite.name, name)
    if described["sha256"] != other_described["sha256"]:
        return "different data"
    same = np.array_equal(rows.labels, other_rows.labels)
    if not same or described["labels"] != other_described["labels"]:
        return "different labels: evaluate both again"
    if _definition(described, name) != _definition(other_described, name):
        return "defined differently: evaluate both again"
    a, b = (
        [
            read_outputs(folder, suite.name, task.name, seed, gold.get("key"))[name]
            for seed in range(len(score["seeds"]))
        ]
        for folder, gold, score in zip(folders, (described, other_described), scores, strict=True)
    )
    metrics = metrics_of(task, name)
    return paired_difference(metrics, a, b, rows, described["labels"], name, task.name)


def _definition(described: Mapping[str, Any], name: str) -> list[Any]:
    """What a model read of a task and was scored on; metrics and labels are compared apart."""
    task = described.get("task", {})
    split = {"split": "validation", **task.get("scored", {}).get(name, {})}
    own = split["split"], split.get("folder"), split.get("text") or task.get("text")
    return [*map(task.get, _DEFINING), *own]
