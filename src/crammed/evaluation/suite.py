"""Evaluates one model on a suite: read, tokenize, fine-tune, score. Finished jobs are reused."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from crammed.config import Protocol
from crammed.errors import InputError, TaskFailed
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning import probing
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.finetuning.jobs import FinetuneJob, FinetuneSetup, run_jobs, usual_threads
from crammed.evaluation.finetuning.task import SCALED, FinetuneTask, LabelScale, SplitWriter
from crammed.evaluation.finetuning.vectors import COMPARED
from crammed.evaluation.folder import EvaluationFolder, outputs_file, read_gold, submission_key
from crammed.evaluation.linear import linear_scores
from crammed.evaluation.prepared import Fold, PreparedTask, remarks
from crammed.evaluation.scores.judged import Judged
from crammed.evaluation.scores.score import failed_json, score_json
from crammed.evaluation.twins import SharedTwins
from crammed.files.hashes import json_hash
from crammed.files.scratch import scratch_folder
from crammed.tasks.folds import parts_of
from crammed.tasks.read import read_task
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import PAIRS, Suite, Task
from crammed.terminal.progress import Progress

Scores = dict[str, Any]
DROPOUT = "the protocol's"
"""Whose dropout models are fine-tuned with: see `COMPARED`."""
COMPOSED = "in Unicode's form C"
"""How texts are read that earlier versions read in another form."""
SAMPLED = "some rows"
"""What probes learn from if there are more rows than earlier versions learned from in full."""


@dataclass(frozen=True)
class SuiteEvaluator:
    """Evaluates one model, whose evaluation folder is open, on suites of tasks.

    Attributes:
        folder: stores finished work.
        backbone: the model.
        spec: where other processes load the same model from.
        numerics: the device and number format for fine-tuning.
        untrained: also fine-tune the untrained model, whose score is the floor for each score.
        test: also predict the unlabelled test splits, for a submission.
        twins: where the untrained model's predictions are shared; None shares them with no one.
        jobs: how many models to fine-tune at once; None is what cores and memory allow.
    """

    folder: EvaluationFolder
    backbone: Backbone
    spec: BackboneSpec
    protocol: Protocol
    numerics: Numerics
    progress: Progress
    untrained: bool = True
    test: bool = False
    twins: SharedTwins | None = None
    jobs: int | None = None

    @property
    def max_length(self) -> int:
        """Maximum tokens per sequence: the protocol's limit, or the model's if that is lower."""
        return min(self.protocol.max_length, self.backbone.max_length)

    def evaluate(
        self,
        suite: Suite,
        names: Sequence[str],
        data: Path | None,
        given: Mapping[str, TaskData],
    ) -> Scores:
        """Fine-tune on every task with every seed, then score.

        A task that fails records the reason under ``failed`` and does not stop the others.

        Args:
            names: of the tasks.
            data: folder of the tasks; None loads the suite from the hub.
            given: what has already been read of it, by task.

        Returns:
            ``{"tasks": {name: score}, "means": [...]}``, as saved in the folder, including earlier
            scores of the suite's other tasks.
        """
        if self.max_length < self.protocol.max_length:
            self.progress.line(
                f"sequences  limited to {self.max_length} tokens by the model (the protocol "
                f"allows {self.protocol.max_length})"
            )
        failures: dict[str, str] = {}
        prepared: list[PreparedTask] = []
        with scratch_folder() as scratch:
            for name in self.progress.track("reading tasks", names, len(names), unit="task"):
                try:
                    read = given.get(name) or read_task(
                        suite.tasks[name], data, suite, test=self.test
                    )
                    prepared.append(self._prepare(suite, name, read, scratch / name))
                    for words in remarks(suite.tasks[name], read):
                        self.progress.line(f"note  {name}: {words}")
                except InputError as error:
                    failures[name] = str(error)
            jobs = [job for each in prepared for job in each.jobs]
            setup = self._setup(_waiting(prepared))
            if self.twins is not None:
                self.twins.take(suite.name, jobs)
            failures |= run_jobs(
                _waiting(prepared), setup, self.backbone.parameters, self.jobs, self.progress
            )
            for each in prepared:
                each.join()
            self._share_twins(suite, jobs)
        found = [each for each in prepared if each.task.name not in failures]
        return self._score_all(suite, found, failures)

    def train_again(
        self,
        suite: Suite,
        task: Task,
        data: Path | None,
        given: Mapping[str, TaskData],
        seed: int,
        weights: Path,
    ) -> None:
        """Fine-tune the model of one seed as `evaluate` has, and write its weights to a file.

        Its outputs go beside the weights, as ``.npz``. With folds, it is trained on all rows.

        Raises:
            InputError: the task cannot be read, or fine-tuning fails.
        """
        read = given.get(task.name) or read_task(task, data, suite, test=False)
        with scratch_folder() as scratch:
            prepared = self._prepare(suite, task.name, read, scratch / task.name)
            setup = self._setup(prepared.jobs)
            file = weights.with_suffix(".npz")
            job = replace(prepared.jobs[seed], file=file, weights=weights)
            failures = run_jobs([job], setup, self.backbone.parameters, 1, self.progress)
        if failures:
            raise InputError(f"task {task.name}: {failures[task.name]}")

    def _setup(self, jobs: Sequence[FinetuneJob]) -> FinetuneSetup:
        """What these jobs share; each has as many CPU threads as this folder began with."""
        threads = None
        if jobs:
            self._say_mixed_numerics()
        if jobs and self.numerics.device.type == "cpu":
            usual = usual_threads(len(jobs), self.backbone.parameters, self.jobs)
            threads = self.folder.threads(usual)
        protocol = self.protocol.model_copy(update={"max_length": self.max_length})
        return FinetuneSetup(self.spec, self.backbone.sha256, protocol, self.numerics, threads)

    def _say_mixed_numerics(self) -> None:
        now = f"{self.numerics.device.type} in {str(self.numerics.dtype).removeprefix('torch.')}"
        if (before := self.folder.numerics(now)) and now not in before:
            self.progress.line(
                f"note  {self.folder.path} has models fine-tuned on {' and '.join(before)}, and "
                f"these are on {now}: name another folder to keep their scores apart"
            )

    def _share_twins(self, suite: Suite, jobs: Sequence[FinetuneJob]) -> None:
        """Leave the untrained model's predictions to others; this only saves them time."""
        if self.twins is not None:
            try:
                self.twins.give(suite.name, jobs)
            except InputError as error:
                self.progress.line(f"untrained  not shared: {str(error).partition(';')[0]}")

    def _prepare(self, suite: Suite, name: str, data: TaskData, scratch: Path) -> PreparedTask:
        task = suite.tasks[name]
        apart = self.protocol.apart and task.has_pairs
        scale = LabelScale()
        if self.protocol.probe is None:  # probes fit values of any size
            scale = LabelScale.of(task.kind, data.train.labels)
        writer = SplitWriter(self.backbone, task, self.max_length, scratch, apart, scale)
        if len(learned := self._learned(data.train)) < (there := len(data.train)):
            used = f"{len(learned):,} of {there:,} training rows, drawn at random"
            self.progress.line(f"note  {name}: the probe learns from {used}")
        train = writer.write(task.train, learned)
        scored = {score: writer.write(score, rows) for score, rows in data.scored.items()}
        tests = data.test if self.test else {}
        tested = {
            submission_key(file, data.test_sha256[file]): writer.write(f"test/{file}", rows)
            for file, rows in tests.items()
        }
        shared = FinetuneTask(
            name=task.name,
            kind=task.kind,
            outputs=data.outputs,
            train=train,
            scored=scored,
            tested=tested,
            tokens=self.protocol.epochs * train.tokens,
            majority_class=data.train.majority_class() if task.kind == "tokens" else 0,
            apart=apart,
            scale=scale,
        )
        about = {"sha256": data.sha256, "task": _settings(task), "labels": list(data.labels)}
        key = json_hash([about, self.max_length, *self._differently(data, apart, scale)])
        jobs, cut = self._jobs(suite, shared, key), dict(writer.cut)
        return PreparedTask(task, data, about, key, jobs, cut, [*self._folds(data, shared, writer)])

    def _learned(self, rows: Rows) -> Rows:
        return rows if self.protocol.probe is None else probing.learned_rows(rows)

    def _differently(self, data: TaskData, apart: bool, scale: LabelScale) -> list[str]:
        """What is fine-tuned otherwise than by earlier versions, whose outputs do not count."""
        splits = (data.train, *data.scored.values())
        texts = (text for rows in splits for texts in rows.texts for text in texts)
        composed = [COMPOSED] * any(map(self.backbone.composes, texts))
        if self.protocol.probe is not None:
            return composed + [SAMPLED] * (len(data.train) > probing.MOST_ROWS)
        own = set(self.backbone.dropouts().values())
        dropout = [DROPOUT] * (not own <= {self.protocol.dropout})
        return [COMPARED] * apart + dropout + [SCALED] * bool(scale) + composed

    def _folds(self, data: TaskData, whole: FinetuneTask, writer: SplitWriter) -> Iterator[Fold]:
        for number, part in enumerate(parts_of(data), 1):
            train = writer.write("train", self._learned(part.train))
            scored = {name: writer.write(name, part.rows) for name in data.scored}
            tokens = self.protocol.epochs * train.tokens
            task = replace(whole, train=train, scored=scored, tokens=tokens)
            yield Fold(number, task, part.places)

    def _jobs(self, suite: Suite, task: FinetuneTask, key: str) -> list[FinetuneJob]:
        """A job for each seed, trained and untrained, and those that earlier calls finished."""
        jobs: list[FinetuneJob] = []
        seeds = self.protocol.seeds
        scored = replace(task, tested={})  # a later seed that lacks test splits alone stays, too
        for trained, wanted in ((True, seeds), (False, seeds if self.untrained else 0)):
            for seed in count():
                file = outputs_file(self.folder.path, suite.name, task.name, seed, trained=trained)
                job = FinetuneJob(task, seed, trained, file, key)
                if seed >= wanted and not replace(job, task=scored).finished():
                    break
                jobs.append(job)
        return jobs

    def _score_all(
        self, suite: Suite, finished: Sequence[PreparedTask], failures: dict[str, str]
    ) -> Scores:
        scores = self.folder.scores(suite.name)
        linear = self._linear(scores["tasks"], finished)
        for each in self.progress.track("scoring", finished, len(finished), unit="task"):
            for name in each.task.numbers:  # one whose split is gone would be of another model
                scores["tasks"].pop(name, None)
            scores["tasks"] |= self._score(suite, each)
        for name, score in linear.items():
            scores["tasks"][name] |= score
        for name, reason in failures.items():
            task = suite.tasks[name]
            scores["tasks"] |= {n: failed_json(task, n, reason) for n in task.numbers}
        return self.save(suite, scores)

    def save(self, suite: Suite, scores: Scores) -> Scores:
        """Save the scores of a suite with its means, without those of tasks that it has no more.

        A suite's file may have changed, or be another one of the same name.
        """
        tasks = {name: task for task in suite.tasks.values() for name in task.numbers}
        kept = {
            name: score
            for name, score in scores["tasks"].items()
            if name in tasks and self._is_of(suite, name, tasks[name], score)
        }
        if gone := [name for name in scores["tasks"] if name not in kept]:
            self.progress.line(
                f"note  left out earlier scores of tasks that suite {suite.name} now lacks or "
                f"defines differently: {', '.join(gone)}"
            )
        return self.folder.save_tasks(suite, {**scores, "tasks": kept})

    def _is_of(self, suite: Suite, name: str, task: Task, score: Mapping[str, Any]) -> bool:
        """Whether a score is of the task as it is defined now, as far as is known."""
        if "failed" in score:
            return True
        if PAIRS in (kind := score.get("kind"), task.kind):  # their labels are not saved
            return kind == task.kind
        try:
            settings, (_, about) = _settings(task), read_gold(self.folder.path, suite.name, name)
        except InputError:  # removed
            return True
        labels = about["labels"]
        positive = labels.index(task.positive) if task.positive in labels else 1
        same = about.get("positive", 1) == positive  # missing in older evaluations
        return same and {**settings, **about["task"]} == settings

    def _linear(
        self, earlier: Mapping[str, Any], finished: Sequence[PreparedTask]
    ) -> dict[str, dict[str, Any]]:
        """What TF-IDF with a linear model scores, and on which data, by name of the score."""
        found: dict[str, dict[str, Any]] = {}
        new = []
        for each in finished:
            known = {name: earlier.get(name, {}) for name in each.data.scored}
            if all(score.get("linear_of") == each.linear_key for score in known.values()):
                found |= {n: {k: s[k] for k in ("linear", "linear_of")} for n, s in known.items()}
            # Models that share twins would each repeat the same linear model.
            elif each.task.kind != "tokens" and self.twins is None:
                new.append(each)
        if not new:
            return found
        label = "TF-IDF with a linear model"
        try:
            for each in self.progress.track(label, new, len(new), unit="task"):
                for name, score in linear_scores(each.task, each.data).items():
                    found[name] = {"linear": score, "linear_of": each.linear_key}
        except InputError as error:
            self.progress.line(f"note  {error}")
        return found

    def _score(self, suite: Suite, prepared: PreparedTask) -> dict[str, Any]:
        task, data = prepared.task, prepared.data
        outputs = [(job, job.outputs()) for job in prepared.to_score()]
        # Only now are all outputs of this data, which may have changed since an earlier call.
        about = {**prepared.about, "key": prepared.key}
        for file, rows in (data.test if self.test else {}).items():
            of_test = {**about, "sha256": data.test_sha256[file]}
            self.folder.save_gold(suite.name, f"test-{file}", rows, of_test)
        scores: dict[str, Any] = {}
        for name, rows in data.scored.items():
            self.folder.save_gold(suite.name, name, rows, about)
            trained, untrained = (
                [each[name] for job, each in outputs if job.trained is which]
                for which in (True, False)
            )
            splits = [task.train] if task.numbers[name].key == task.train else [task.train, name]
            cut = {split: prepared.cut[split] for split in splits}
            scores[name], medians = score_json(task, name, trained, untrained, data, cut)
            if task.has_pairs and not self.protocol.apart:
                scores[name]["joint"] = True
            if medians is not None:
                self.folder.save_resampled(suite.name, name, medians)
                median = trained[median_seed(scores[name])]
                judged = Judged(task, data.labels, name, rows, median)
                self.folder.save_told(suite.name, name, judged.told())
        return scores


def _settings(task: Task) -> dict[str, Any]:
    """What makes a task another one, whose models are fine-tuned anew.

    Another positive class needs no other models, and the hash of the data covers rows and folds.
    """
    return task.model_dump(mode="json", exclude={"positive", "most_rows", "folds"})


def _waiting(prepared: Sequence[PreparedTask]) -> list[FinetuneJob]:
    return [job for each in prepared for job in each.unfinished()]


def first_score(task: Task, scores: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first of a task's scores in a suite's; empty if there is none."""
    return next((scores["tasks"][name] for name in task.numbers if name in scores["tasks"]), {})


def median_seed(score: Mapping[str, Any]) -> int:
    """The seed, from 0, with the median score; with an even number, the lower of the middle two.

    Raises:
        TaskFailed: there is no score.
    """
    if "failed" in score:
        raise TaskFailed(f"the task has no score: {score['failed']}")
    seeds = score["seeds"]
    return sorted(range(len(seeds)), key=seeds.__getitem__)[(len(seeds) - 1) // 2]


def raise_for_failed_tasks(
    suites: Mapping[str, Any], asked: Container[str] | None = None, *, said: bool = False
) -> None:
    """Raise `TaskFailed` if a task of a suite has no score.

    Args:
        suites: scores as JSON, by name of the suite.
        asked: the names of the scores that were asked for; None is all.
        said: their faults have been printed.
    """
    reasons = [
        name if said else f"{name}: {entry['failed']}"
        for scores in suites.values()
        for name, entry in scores.get("tasks", {}).items()
        if "failed" in entry and (asked is None or name in asked)
    ]
    if reasons:
        raise TaskFailed(
            f"finished, but these tasks have no score: {(', ' if said else '; ').join(reasons)}"
        )
