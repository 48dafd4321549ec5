"""A suite of tasks for one model: read, fine-tune, score; finished jobs are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.jobs import Bench, FinetuneJob, SplitFile, TaskWork, run_jobs
from crammed.evaluation.folder import EvaluationFolder, prediction_file, tested_name
from crammed.evaluation.scores.score import failed_json, score_json, suite_means
from crammed.files import json_hash
from crammed.progress import Progress
from crammed.tasks.read import read_task
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import Suite, Task

Scores = dict[str, Any]


@dataclass(frozen=True)
class _Prepared:
    """A task that was read, its jobs, and how many sequences of each split lost their end."""

    task: Task
    data: TaskData
    jobs: list[FinetuneJob]
    cut: dict[str, int]


def evaluate_suite(
    kept: EvaluationFolder,
    encoder: Backbone,
    spec: BackboneSpec,
    suite: Suite,
    names: Sequence[str],
    data: Path | None,
    protocol: Protocol,
    numerics: Numerics,
    progress: Progress,
    *,
    twin: bool = True,
    test: bool = False,
    most: int | None = None,
) -> Scores:
    """Fine-tune on every task with every seed, and score.

    A task that fails keeps its reason under ``failed`` and does not stop the others.

    Args:
        names: tasks of the suite.
        data: folder of the tasks; None loads the suite from the hub.
        twin: fine-tune the untrained model too, the floor of each score.
        test: predict the unlabelled test splits too, for a submission.
        most: jobs at a time; None is what cores and memory allow.

    Returns:
        ``{"tasks": {number: score}, "means": [...]}``, which is also in the folder.
    """
    length = min(protocol.max_length, encoder.max_length)
    if length < protocol.max_length:
        progress.line(f"sequences  cut at the model's {length} tokens, not {protocol.max_length}")
    failures: dict[str, str] = {}
    prepared: list[_Prepared] = []
    with tempfile.TemporaryDirectory(prefix="crammed-tokens-") as folder:
        for name in progress.track("reading tasks", names, len(names), unit="tasks"):
            task = suite.tasks[name]
            try:
                read = read_task(task, data, suite, test=test)
                writer = _Tokens(encoder, task, length, Path(folder) / name)
                prepared.append(_prepare(kept, suite, read, writer, protocol, twin, test))
            except InputError as error:
                failures[name] = str(error)
        missing = [job for each in prepared for job in each.jobs if not job.finished()]
        bench = Bench(spec, protocol.model_copy(update={"max_length": length}), numerics)
        failures |= run_jobs(missing, bench, encoder.parameters, most, progress)
    scores: Scores = kept.scores()["suites"].get(suite.name, {"tasks": {}})
    for each in progress.track("scoring", prepared, len(prepared), unit="tasks"):
        if each.task.name not in failures:
            scores["tasks"] |= _score(kept, suite, each)
    for name, reason in failures.items():
        task = suite.tasks[name]
        scores["tasks"] |= {n: failed_json(task, n, reason) for n in task.numbers}
    order = [number for task in suite.tasks.values() for number in task.numbers]
    scores["tasks"] = {n: scores["tasks"][n] for n in order if n in scores["tasks"]}
    resampled = {n: r for n in scores["tasks"] if (r := kept.resampled(suite.name, n)) is not None}
    scores["means"] = suite_means(suite, scores["tasks"], resampled)
    kept.save_suite(suite.name, scores)
    return scores


@dataclass(frozen=True)
class _Tokens:
    """Writes the splits of a task as tokens, and remembers how many sequences were cut."""

    encoder: Backbone
    task: Task
    length: int
    folder: Path
    cut: dict[str, int] = field(default_factory=dict)

    def write(self, split: str, rows: Rows) -> SplitFile:
        words = self.task.kind == "tokens"
        tokens = self.encoder.tokenize(rows.texts, self.length, words=words)
        counts = np.array([len(texts) for texts in rows.texts], np.int64) if words else None
        file = SplitFile(self.folder / f"{len(self.cut)}.npz", rows.choices)
        file.write(tokens, rows.labels, counts)
        self.cut[split] = tokens.cut
        return file


def _prepare(
    kept: EvaluationFolder,
    suite: Suite,
    data: TaskData,
    tokens: _Tokens,
    protocol: Protocol,
    twin: bool,
    test: bool,
) -> _Prepared:
    """Tokens of all splits, and the jobs: each seed, and each seed of the untrained twin."""
    task = tokens.task
    train = tokens.write(task.train, data.train)
    scored = {name: tokens.write(name, rows) for name, rows in data.scored.items()}
    tests = data.test if test else {}
    tested = {
        tested_name(name, data.test_sha256[name]): tokens.write(f"test/{name}", rows)
        for name, rows in tests.items()
    }
    work = TaskWork(
        name=task.name,
        kind=task.kind,
        outputs=data.outputs,
        train=train,
        scored=scored,
        tested=tested,
        tokens=protocol.epochs * train.tokens,
        commonest=_commonest(data.train) if task.kind == "tokens" else 0,
    )
    settings = task.model_dump(mode="json")
    about = {"sha256": data.sha256, "task": settings, "labels": list(data.labels)}
    for number, rows in data.scored.items():
        kept.keep_gold(suite.name, number, rows, about)
    for name, rows in tests.items():
        of_test = {**about, "sha256": data.test_sha256[name]}
        kept.keep_gold(suite.name, f"test-{name}", rows, of_test)
    jobs: list[FinetuneJob] = []
    for trained, wanted in ((True, protocol.seeds), (False, protocol.seeds if twin else 0)):
        for seed in count():
            file = prediction_file(kept.folder, suite.name, task.name, seed, trained=trained)
            job = FinetuneJob(work, seed, trained, file, json_hash([about, tokens.length]))
            if seed >= wanted and not job.finished():
                break
            jobs.append(job)  # seeds that an earlier evaluation had more count too
    return _Prepared(task, data, jobs, tokens.cut)


def _commonest(rows: Rows) -> int:
    labels = rows.labels[rows.labels >= 0].astype(np.int64)
    return int(np.bincount(labels).argmax())


def _score(kept: EvaluationFolder, suite: Suite, prepared: _Prepared) -> dict[str, Any]:
    """Scores of the numbers of a task whose jobs are all finished."""
    task, data = prepared.task, prepared.data
    outputs = [(job, job.outputs()) for job in prepared.jobs]
    scores: dict[str, Any] = {}
    for number in data.scored:
        trained, untrained = (
            [each[number] for job, each in outputs if job.trained is which]
            for which in (True, False)
        )
        cut = {name: prepared.cut[name] for name in (task.train, number)}
        scores[number], medians = score_json(task, number, trained, untrained, data, cut)
        if medians is not None:
            kept.keep_resampled(suite.name, number, medians)
    return scores
