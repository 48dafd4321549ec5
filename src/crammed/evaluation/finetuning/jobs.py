"""Every (task, seed) that is wanted, on all cores of a CPU or on one GPU."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crammed.config import Protocol
from crammed.device import is_out_of_memory
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.finetuning.batches import Encoded, word_places
from crammed.evaluation.finetuning.engine import NoGraph, Numerics, finetune, predict
from crammed.evaluation.finetuning.outputs import Outputs, load, save
from crammed.progress import Progress
from crammed.tasks.task import Kind
from crammed.workers import available_memory, cores, worker_processes

BYTES_A_PARAMETER = 24
"""Weights, gradients, two moments, and room for activations."""
BYTES_A_WORKER = 1 << 30
MOST_TOGETHER = 10
"""Models that train side by side on a GPU: five seeds, and their untrained twins."""


@dataclass(frozen=True)
class SplitFile:
    """Tokens of one split in a file that every worker reads."""

    path: Path
    choices: int

    def write(
        self, tokens: Tokenized, labels: NDArray[np.float32], counts: NDArray[np.int64] | None
    ) -> None:
        """Args: counts: words of each sequence, for kind tokens."""
        arrays: dict[str, NDArray[Any] | None] = {
            "ids": tokens.ids,
            "offsets": tokens.offsets,
            "labels": labels,
            "types": tokens.types,
            "words": tokens.words,
            "counts": counts,
        }
        present = {name: array for name, array in arrays.items() if array is not None}
        save(self.path, present, {"cut": tokens.cut})

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return len(self.read()[0].ids)

    def read(self) -> tuple[Tokenized, NDArray[np.float32], NDArray[np.int64] | None]:
        """What `write` was given."""
        loaded = load(self.path)
        assert loaded is not None, self.path
        arrays, about = loaded
        tokens = Tokenized(
            arrays["ids"],
            arrays["offsets"],
            arrays.get("types"),
            arrays.get("words"),
            about["cut"],
        )
        return tokens, arrays["labels"], arrays.get("counts")


@dataclass(frozen=True)
class TaskWork:
    """What all jobs of one task share.

    Attributes:
        outputs: logits of a sequence.
        scored: files of the labelled splits, by name of the number.
        tested: files of unlabelled splits, by `folder.tested_name`; the untrained
            twin does not predict these.
        tokens: that one job trains on.
        commonest: class number that words count as which were cut off, for kind tokens.
    """

    name: str
    kind: Kind
    outputs: int
    train: SplitFile
    scored: dict[str, SplitFile]
    tested: dict[str, SplitFile]
    tokens: int
    commonest: int = 0


@dataclass(frozen=True)
class FinetuneJob:
    """One model to fine-tune on one task; its outputs go to `file`, marked with `key`."""

    task: TaskWork
    seed: int
    trained: bool
    file: Path
    key: str

    def __str__(self) -> str:
        return f"{self.task.name}{'' if self.trained else ', untrained twin'}, seed {self.seed + 1}"

    def finished(self) -> bool:
        """Whether the outputs are there, and are of the same data."""
        loaded = load(self.file)
        if loaded is None or loaded[1]["key"] != self.key:
            return False
        return self.splits.keys() <= loaded[0].keys()

    @property
    def splits(self) -> dict[str, SplitFile]:
        """What it predicts."""
        return {**self.task.scored, **(self.task.tested if self.trained else {})}

    def outputs(self) -> Outputs:
        """What the finished job predicted."""
        loaded = load(self.file)
        assert loaded is not None, self.file
        return loaded[0]


@dataclass(frozen=True)
class Bench:
    """What a job is done with: the model, the protocol, the device."""

    encoder: BackboneSpec
    protocol: Protocol
    numerics: Numerics


@dataclass(frozen=True)
class Event:
    """Training tokens done since the last event; and the job that ended, and why it failed."""

    tokens: float = 0.0
    job: FinetuneJob | None = None
    failure: str | None = None


Failures = dict[str, str]
"""Task -> why one of its jobs has no result."""


def run_jobs(
    jobs: Sequence[FinetuneJob], bench: Bench, parameters: int, most: int | None, progress: Progress
) -> Failures:
    """Do all jobs, longest first; each keeps its outputs when it is finished.

    A job that fails does not stop the others. On a CPU every core has jobs of its own, which
    wastes less than many cores on the small products of one job.

    Args:
        parameters: of the model, to know how many fit into memory.
        most: jobs at a time; None is what cores and memory allow.

    Raises:
        CrammedError: a worker process died.
    """
    jobs = sorted(jobs, key=lambda job: -job.task.tokens)  # the jobs of a task stay together
    if bench.numerics.device.type == "cpu":
        workers = min(len(jobs), most or _workers(parameters))
        one = workers <= 1
        alone = _in_groups(jobs, bench, 1, progress)
        events = alone if one else _in_processes(jobs, bench, workers)
    else:
        events = _in_groups(jobs, bench, most or MOST_TOGETHER, progress)
    failures: Failures = {}
    done, detail = 0.0, ""
    with progress.task("fine-tuning", sum(job.task.tokens for job in jobs)) as bar:
        for event in events:
            done += event.tokens
            if event.job is not None:
                detail = str(event.job) + (" FAILED" if event.failure else " done")
            if event.job is not None and event.failure is not None:
                failures.setdefault(event.job.task.name, event.failure)
            bar.update(done, detail)
    return failures


def _workers(parameters: int) -> int:
    memory = available_memory()
    if memory is None:
        return cores()
    return max(1, min(cores(), memory // (BYTES_A_WORKER + BYTES_A_PARAMETER * parameters)))


def _in_groups(
    jobs: Sequence[FinetuneJob], bench: Bench, size: int, progress: Progress
) -> Iterator[Event]:
    """In this process, `size` jobs of a task side by side.

    Fewer where memory does not suffice, and without CUDA graphs where the model does not allow
    them; what was done until then is done again.
    """
    waiting = list(jobs)
    while waiting:
        group = [job for job in waiting[:size] if job.task is waiting[0].task]
        too_large = None
        try:
            yield from _together(group, bench)
        except NoGraph as error:
            progress.line(f"fine-tuning  without CUDA graphs, slower: {_line(error)}")
            bench = replace(bench, numerics=replace(bench.numerics, graphs=False))
            continue
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            too_large = _line(error)  # the error itself holds on to the memory
        if too_large is not None and len(group) > 1:
            size = len(group) // 2
            torch.cuda.empty_cache()
            continue
        if too_large is not None:
            yield Event(0.0, group[0], f"out of memory: {too_large}")
        waiting = waiting[len(group) :]


def _in_processes(jobs: Sequence[FinetuneJob], bench: Bench, workers: int) -> Iterator[Event]:
    """One job a process at a time; every process has its share of the cores."""
    context = multiprocessing.get_context("spawn")
    spent = context.Value("d", 0.0)
    threads = max(1, cores() // workers)
    arguments = (bench, spent, threads)
    with worker_processes(workers, "--jobs 1", _begin_worker, arguments) as pool:
        running = {pool.submit(_in_worker, job): job for job in jobs}
        seen = 0.0
        while running:
            finished, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            now = float(spent.value)
            yield Event(now - seen)
            seen = now
            for future in finished:
                yield Event(0.0, running.pop(future), future.result())


_worker: tuple[Bench, Any] | None = None
"""What this worker process was given."""


def _begin_worker(bench: Bench, spent: Any, threads: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = bench, spent


def _in_worker(job: FinetuneJob) -> str | None:
    """Do one job; why it failed, or None."""
    assert _worker is not None
    bench, spent = _worker
    failure = None
    try:
        for event in _together([job], bench):
            with spent.get_lock():
                spent.value += event.tokens
            failure = event.failure
    except RuntimeError as error:
        return f"out of memory: {_line(error)}"
    return failure


def _together(group: Sequence[FinetuneJob], bench: Bench) -> Iterator[Event]:
    """Fine-tune the models of jobs of one task side by side, predict, and keep the outputs.

    Raises:
        NoGraph: a step cannot be captured.
        RuntimeError: memory ran out. What else fails is an event.
    """
    task, numerics = group[0].task, bench.numerics
    try:
        encoder = _encoder(bench.encoder)
        train = _encoded(task.train, encoder.pad, numerics.device)
        models = [
            encoder.classifier(
                task.outputs, job.seed, trained=job.trained, every_token=task.kind == "tokens"
            ).to(numerics.device)
            for job in group
        ]
        names = [(task.name, job.seed) for job in group]
        steps = bench.protocol.epochs * (len(train) // bench.protocol.batch)
        began = time.monotonic()
        shown = began
        seen = 0
        for done in finetune(models, names, task.kind, train, bench.protocol, numerics):
            if (now := time.monotonic()) - shown > 0.5 or done == steps:
                yield Event(len(group) * task.tokens * (done - seen) / steps)
                shown, seen = now, done
        for job, model in zip(group, models, strict=True):
            outputs = {
                name: _outputs(model, split, task, encoder.pad, numerics)
                for name, split in job.splits.items()
            }
            seconds = (time.monotonic() - began) / len(group)
            save(job.file, outputs, {"key": job.key, "seconds": round(seconds, 2)})
            yield Event(0.0, job)
    except (InputError, ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, NoGraph) or is_out_of_memory(error):
            raise
        yield from (Event(0.0, job, _line(error)) for job in group)


def _outputs(
    model: nn.Module, split: SplitFile, task: TaskWork, pad: int, numerics: Numerics
) -> NDArray[np.float32]:
    """Outputs of a split's rows, or of all its words.

    Raises:
        ValueError: they are not finite.
    """
    tokens, labels, counts = split.read()
    rows = Encoded(tokens, labels, split.choices, pad, numerics.device, counts)
    outputs = predict(model, rows, numerics)
    if not np.isfinite(outputs).all():
        raise ValueError("fine-tuning diverged: outputs are not finite")
    if counts is None:
        return outputs
    words = np.zeros((int(counts.sum()), task.outputs), np.float32)
    words[:, task.commonest] = 1.0
    token, word = word_places(tokens, counts)
    words[word] = outputs[token]
    return words


def _encoded(split: SplitFile, pad: int, device: torch.device) -> Encoded:
    tokens, labels, counts = split.read()
    return Encoded(tokens, labels, split.choices, pad, device, counts)


@lru_cache(maxsize=1)
def _encoder(spec: BackboneSpec) -> Backbone:
    return spec.load()


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
