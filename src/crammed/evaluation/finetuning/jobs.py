"""Runs fine-tuning jobs, one per model, task and seed, on all CPU cores or on one GPU."""

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

from crammed.config import Probe, Protocol
from crammed.errors import InputError, in_one_line
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.finetuning.engine import CaptureFailed, Numerics, finetune, predict
from crammed.evaluation.finetuning.probing import probe
from crammed.evaluation.finetuning.task import FinetuneTask, TokenizedSplit
from crammed.evaluation.finetuning.vectors import PairClassifier
from crammed.files.faults import disk_faults
from crammed.machine import workers as processes
from crammed.machine.device import is_out_of_memory
from crammed.machine.lanes import compute_threads
from crammed.machine.workers import available_memory, cores
from crammed.model.trained import save_weights
from crammed.terminal.progress import Progress

BYTES_A_PARAMETER = 24
"""Weights, gradients, two moments, and room for activations."""
BYTES_A_WORKER = 1 << 30
MOST_TOGETHER = 10
"""Models that train side by side on a GPU: five seeds, pretrained and untrained."""


@dataclass(frozen=True)
class FinetuneJob:
    """One model to fine-tune on one task, and where its outputs go.

    Attributes:
        trained: whether the model starts from its pretrained weights.
        file: holds the outputs once the job is finished.
        key: digest of the data, stored in the file so that outputs for other data do not count.
        weights: a file for the model's weights as well; None does not keep them.
    """

    task: FinetuneTask
    seed: int
    trained: bool
    file: Path
    key: str
    weights: Path | None = None

    def __str__(self) -> str:
        return f"{self.task.name}{'' if self.trained else ', untrained'}, seed {self.seed + 1}"

    def finished(self) -> bool:
        loaded = load_arrays(self.file)
        if loaded is None or loaded[1].get("key") != self.key:
            return False
        return self.splits.keys() <= loaded[0].keys()

    @property
    def splits(self) -> dict[str, TokenizedSplit]:
        return {**self.task.scored, **(self.task.tested if self.trained else {})}

    def outputs(self) -> dict[str, NDArray[np.float32]]:
        """The fine-tuned model's outputs for each split; the job must be finished."""
        loaded = load_arrays(self.file)
        assert loaded is not None, self.file
        return loaded[0]


@dataclass(frozen=True)
class FinetuneSetup:
    """What all jobs share: the pretrained model, the protocol, the device and its numerics.

    Attributes:
        sha256: of the model.
        threads: CPU threads of each job, on which rounding depends; None follows from the number of
            jobs and cores.
    """

    backbone: BackboneSpec
    sha256: str
    protocol: Protocol
    numerics: Numerics
    threads: int | None = None


@dataclass(frozen=True)
class JobProgress:
    """A progress report.

    Attributes:
        tokens: how many tokens have been trained on since the last report.
        job: the job that has ended, if one has.
        failure: why that job failed, if it did.
    """

    tokens: float = 0.0
    job: FinetuneJob | None = None
    failure: str | None = None


Failures = dict[str, str]
"""Task -> why one of its jobs failed."""


def run_jobs(
    jobs: Sequence[FinetuneJob],
    setup: FinetuneSetup,
    parameters: int,
    limit: int | None,
    progress: Progress,
) -> Failures:
    """Run all jobs, the longest first; each writes its outputs when it is finished.

    A job that fails does not stop the others. Of tasks on which the untrained model alone fails, a
    line says so. On a CPU every core runs jobs of its own, because the matrix products of one job
    are too small to occupy several cores.

    Args:
        parameters: the model's number of parameters, which decides how many models fit in memory.
        limit: maximum number of jobs at once; None is what cores and memory allow.

    Raises:
        CrammedError: a worker process died.
    """
    jobs = sorted(jobs, key=lambda job: -job.task.tokens)  # the jobs of a task stay together
    cpu, here = setup.numerics.device.type == "cpu", setup.threads
    if cpu and (workers := _at_once(len(jobs), parameters, limit, setup.threads)) > 1:
        reports, here = _in_processes(jobs, setup, workers), None
    else:
        reports = _in_groups(jobs, setup, 1 if cpu else limit or MOST_TOGETHER, progress)
    failures: Failures = {}
    of_twins: Failures = {}
    done, detail = 0.0, ""
    whole = sum(job.task.tokens for job in jobs)
    label = "fine-tuning" if setup.protocol.probe is None else "probing"
    with progress.task(label, whole) as bar, compute_threads(here):
        for report in reports:
            done += report.tokens
            if report.job is not None:
                detail = str(report.job) + (" FAILED" if report.failure else " done")
                if report.failure is not None:
                    of = failures if report.job.trained else of_twins
                    of.setdefault(report.job.task.name, report.failure)
            bar.update(done, detail)
    for name, reason in of_twins.items():
        if name not in failures:
            progress.line(
                f"note  {name}: scored without the untrained model, which failed: {reason}"
            )
    return failures


def usual_threads(jobs: int, parameters: int, limit: int | None) -> int:
    """CPU threads of each job where nothing else decides; the arguments are those of `run_jobs`."""
    workers = _at_once(jobs, parameters, limit, None)
    return max(1, cores() // workers) if workers > 1 else torch.get_num_threads()


def _at_once(jobs: int, parameters: int, limit: int | None, threads: int | None) -> int:
    """How many jobs to run at once."""
    workers = min(jobs, limit or _workers(parameters))
    return workers if threads is None else min(workers, max(1, cores() // threads))


def _workers(parameters: int) -> int:
    """How many worker processes the cores and memory allow."""
    memory = available_memory()
    if memory is None:
        return cores()
    return max(1, min(cores(), memory // (BYTES_A_WORKER + BYTES_A_PARAMETER * parameters)))


def _in_groups(
    jobs: Sequence[FinetuneJob], setup: FinetuneSetup, size: int, progress: Progress
) -> Iterator[JobProgress]:
    """Run jobs in this process, up to `size` jobs of a task side by side.

    A group that does not fit in memory is halved, and if the model's step cannot be captured, CUDA
    graphs are turned off; either way the group starts over.
    """
    waiting = list(jobs)
    while waiting:
        group = [job for job in waiting[:size] if job.task is waiting[0].task]
        too_large = None
        try:
            yield from _together(group, setup)
        except CaptureFailed as error:
            progress.line(
                f"fine-tuning  without CUDA graphs, which is slower: {in_one_line(error)}"
            )
            setup = replace(setup, numerics=replace(setup.numerics, graphs=False))
            continue
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            too_large = in_one_line(error)  # the error itself holds on to the memory
        if too_large is not None and len(group) > 1:
            size = len(group) // 2
            torch.cuda.empty_cache()
            continue
        if too_large is not None:
            yield JobProgress(0.0, group[0], f"out of memory: {too_large}")
        waiting = waiting[len(group) :]


def _in_processes(
    jobs: Sequence[FinetuneJob], setup: FinetuneSetup, workers: int
) -> Iterator[JobProgress]:
    """Run jobs in several processes, which share the cores equally; each has one job at a time."""
    with processes.protected_children():  # this starts a process that keeps track of what is shared
        tokens = multiprocessing.get_context("spawn").Value("d", 0.0)
    threads = setup.threads or max(1, cores() // workers)
    arguments = (setup, tokens, threads)
    with processes.worker_processes(workers, "--jobs 1", _begin_worker, arguments) as pool:
        running = {pool.submit(_in_worker, job): job for job in jobs}
        seen = 0.0
        while running:
            finished, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            now = float(tokens.value)
            yield JobProgress(now - seen)
            seen = now
            for future in finished:
                yield JobProgress(0.0, running.pop(future), future.result())


_worker: tuple[FinetuneSetup, Any] | None = None
"""State of this worker process: the setup, and the shared count of tokens trained on."""


def _begin_worker(setup: FinetuneSetup, tokens: Any, threads: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = setup, tokens


def _in_worker(job: FinetuneJob) -> str | None:
    """Run one job; returns why it failed, or None."""
    assert _worker is not None
    setup, tokens = _worker
    failure = None
    try:
        for report in _together([job], setup):
            with tokens.get_lock():
                tokens.value += report.tokens
            failure = report.failure
    except RuntimeError as error:
        failure = f"out of memory: {in_one_line(error)}"
    return failure


def _together(group: Sequence[FinetuneJob], setup: FinetuneSetup) -> Iterator[JobProgress]:
    """Fine-tune the models of several jobs of one task side by side, predict, write the outputs.

    `CaptureFailed` and full memory are raised, other failures of these jobs reported.
    """
    task, protocol, numerics = group[0].task, setup.protocol, setup.numerics
    try:
        backbone = _loaded(setup.backbone, setup.sha256)
        if protocol.probe is not None:
            yield from _probed(group, backbone, protocol.probe, numerics)
            return
        train = task.train.encoded(backbone.pad, numerics.device)
        models = [_model(backbone, job, protocol).to(numerics.device) for job in group]
        names = [(task.name, job.seed) for job in group]
        steps = protocol.epochs * (len(train) // protocol.batch)
        began = time.monotonic()
        shown, seen = began, 0
        for done in finetune(models, names, task.kind, train, protocol, numerics):
            if (now := time.monotonic()) - shown > 0.5 or done == steps:
                yield JobProgress(len(group) * task.tokens * (done - seen) / steps)
                shown, seen = now, done
        for job, model in zip(group, models, strict=True):
            outputs = {
                name: _outputs(model, split, task, backbone.pad, numerics)
                for name, split in job.splits.items()
            }
            if job.weights is not None:
                kept = {name: w.cpu().contiguous() for name, w in model.state_dict().items()}
                with disk_faults(job.weights):
                    save_weights(job.weights, kept, format="pt")
            seconds = (time.monotonic() - began) / len(group)
            save_arrays(job.file, outputs, {"key": job.key, "seconds": round(seconds, 2)})
            yield JobProgress(0.0, job)
    except (InputError, ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, CaptureFailed) or is_out_of_memory(error):
            raise
        failed = [job for job in group if not job.finished()]  # those before it are done
        yield from (JobProgress(0.0, job, in_one_line(error)) for job in failed)


def _model(backbone: Backbone, job: FinetuneJob, protocol: Protocol) -> nn.Module:
    task, dropout = job.task, float(protocol.dropout)
    if not task.apart:
        return backbone.classifier(
            task.outputs,
            job.seed,
            trained=job.trained,
            every_token=task.kind == "tokens",
            dropout=dropout,
        )
    if backbone.width is None:
        raise InputError(
            f"{backbone.name} does not say how wide it is: set pairs: joint (--protocol FILE.yaml, "
            "or finetune.pairs=joint in a run)"
        )
    encoder = backbone.encoder_ends_to_tune(job.seed, trained=job.trained, dropout=dropout)
    return PairClassifier(encoder, backbone.width, task.outputs, dropout, job.seed)


def _probed(
    group: Sequence[FinetuneJob], backbone: Backbone, method: Probe, numerics: Numerics
) -> Iterator[JobProgress]:
    for job in group:
        began = time.monotonic()
        encoder = backbone.encoder(None if job.trained else job.seed)
        outputs = probe(encoder, job.task, job.splits, method, backbone.pad, numerics)
        seconds = round(time.monotonic() - began, 2)
        save_arrays(job.file, outputs, {"key": job.key, "seconds": seconds})
        yield JobProgress(job.task.tokens, job)


def _outputs(
    model: nn.Module, split: TokenizedSplit, task: FinetuneTask, pad: int, numerics: Numerics
) -> NDArray[np.float32]:
    """A model's outputs for the rows of a split, or, for kind tokens, for its words."""
    rows = split.encoded(pad, numerics.device)
    outputs = task.scale.undone(predict(model, rows, numerics))
    if not np.isfinite(outputs).all():
        raise ValueError(
            "fine-tuning diverged: its outputs are not finite; lower lr (--protocol FILE.yaml, or "
            "finetune.lr in a run)"
        )
    return rows.of_words(outputs, task.majority_class)


@lru_cache(maxsize=1)
def _loaded(spec: BackboneSpec, sha256: str) -> Backbone:
    """The model with this hash, which another may follow in the same folder."""
    return spec.load()
