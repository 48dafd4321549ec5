"""Several processes train one model: `torchrun` starts them, and the first one leads.

The leader runs the training loop as if it were alone, and has the only clock; before each part of
an update it tells the followers what to do. Each process computes the gradient of its share of the
rows, and all apply the sum, so the loss is that of one device with the same batch.

This requires the same configuration, corpus and weights in all processes. They compare hashes of
these at the start, and of the weights before every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.errors import InputError, PeerLost, RanksDiffer
from crammed.files.hashes import sha256
from crammed.machine.device import Device
from crammed.machine.workers import world_size
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_events
from crammed.terminal.progress import SILENT, Progress
from crammed.training import watchdog
from crammed.training.checkpoint import load_checkpoint
from crammed.training.signals import leave_update, noted_signals
from crammed.training.update.build import build_for
from crammed.training.update.lanes import note_parts
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep

_STOP, _GRADIENTS, _APPLY, _DISCARD, _COMPILE, _COMPARE, _OPENED, _RELOAD = range(8)
_LENGTH = 8
"""Numbers in a command: its code, and what the followers need to know about an update."""


@dataclass(frozen=True)
class Group:
    """The processes that train together.

    Attributes:
        rank: number of this process; 0 is the leader.
        size: number of processes.
    """

    rank: int
    size: int

    def whole(self, device: Device) -> Device:
        """This process's device, with the combined peak speed of all processes' GPUs."""
        if device.peak is None or device.torch.type == "cpu":  # processes share the cores
            return device
        return replace(device, peak=self.size * device.peak)

    def send(self, what: int, *values: float) -> None:
        """Tell the followers what to do; only the leader calls this."""
        padded = (float(what), *values, *[0.0] * (_LENGTH - 1 - len(values)))
        command = torch.tensor(padded, dtype=torch.float64)
        with _together():
            dist.broadcast(command, 0)

    def receive(self) -> list[float]:
        command = torch.zeros(_LENGTH, dtype=torch.float64)
        with _together():
            dist.broadcast(command, 0)
        return [float(value) for value in command.tolist()]

    def tell(self, text: str | None) -> str:
        """Send the leader's text to all processes and return it; the others pass None."""
        content = (text or "").encode()
        size = torch.tensor(len(content))
        with _together():
            dist.broadcast(size, 0)
            sent = torch.tensor(list(content.ljust(int(size))), dtype=torch.uint8)
            dist.broadcast(sent, 0)
        return bytes(sent.tolist()).decode()

    def share(self, rows: int, together: int) -> slice:
        """The part of an update's `rows` rows that this process works on.

        Args:
            together: how many rows must not be parted (`RunConfig.rows_compared`).
        """
        groups = math.ceil(rows / together)
        bounds = [groups * n // self.size * together for n in (self.rank, self.rank + 1)]
        return slice(*(min(rows, bound) for bound in bounds))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients in every process by the sum over all processes."""
        listed = list(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in listed]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.reduce(flat)
        sizes = [parameter.numel() for parameter in listed]
        for parameter, part in zip(listed, flat.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def reduce(self, value: Tensor, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Replace a tensor in every process by the sum over all processes, or another reduction."""
        with _together():
            dist.all_reduce(value, how)
        return value

    def compare(self, values: Mapping[str, str], hint: str) -> None:
        """Check that values are the same in all processes; all of them must call this.

        Args:
            values: values by their names in messages; all processes must use the same names.
            hint: what to do if they differ.

        Raises:
            RanksDiffer: they differ.
        """
        hashes = [hashlib.sha256(value.encode()).digest() for value in values.values()]
        mine = torch.tensor([list(each) for each in hashes], dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with _together():
            dist.all_gather(everyone, mine)
        for rank, theirs in enumerate(everyone):
            same = (theirs == everyone[0]).all(dim=1).tolist()
            names = [name for name, equal in zip(values, same, strict=True) if not equal]
            if names:
                raise RanksDiffer(
                    f"process {rank} differs from process 0 in {', '.join(names)}: {hint}"
                )


@contextmanager
def _together() -> Iterator[None]:
    """Turn failed communication into `PeerLost`: another process has ended."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            "another process of this run ended: repeat the same command to resume from the last "
            "checkpoint"
        ) from error


@contextmanager
def joined_group(device: Device) -> Iterator[Group | None]:
    """The group that ``torchrun`` put this process into; None if it was started alone.

    Raises:
        PeerLost: another process of the group ended. The connection can then neither be used nor
            closed, so the caller must exit without the interpreter's usual cleanup.
    """
    if world_size() == 1:
        yield None
        return
    kind = device.torch.type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Commands are sent between CPUs, so that no process waits for its GPU to read one. The
    # library's own timeout, which ends in a traceback, is longer than the watchdog's.
    backend, limit = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", 2 * watchdog.PATIENCE
    with _together():
        dist.init_process_group(backend, timeout=timedelta(seconds=limit))
    whole = True
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    except PeerLost:
        whole = False
        raise
    finally:
        if whole:
            dist.destroy_process_group()


def compare_setups(config: RunConfig, corpus: Corpus, device: Device, group: Group) -> None:
    """Check that all processes were given the same configuration and corpus.

    Raises:
        RanksDiffer: they were not.
    """
    without = ("compute", "corpus", "description")
    sections = {name: it for name, it in config.complete().items() if name not in without}
    values = {name: json.dumps(it, sort_keys=True) for name, it in sections.items()}
    formats = f"{device.dtype} {device.fp8}"
    values |= {"corpus": corpus.sha256, "number format (compute.dtype, compute.fp8)": formats}
    group.compare(values, "give all processes the same command and the same corpus")


def compare_folders(run: Path, group: Group) -> None:
    """Check that all processes see the same run directory, which the leader has opened.

    Raises:
        RanksDiffer: they do not.
    """
    if group.rank == 0:
        group.send(_OPENED)
    else:
        group.receive()
    files = [run / name for name in ("config.json", "env.json", "summary.json")]
    seen = [sha256(file) if file.exists() else "none" for file in files]  # env.json has the time
    hint = "--out has to name one folder, on a disk that all machines share"
    group.compare({"the run directory that it sees": " ".join(seen)}, hint)


def compare_weights(step: TrainStep, group: Group | None) -> None:
    """Check that all processes have the same weights.

    The leader's call makes the followers, in `follow`, call it too.

    Raises:
        RanksDiffer: they have not.
    """
    if group is None:
        return
    if group.rank == 0:
        group.send(_COMPARE)
    hint = (
        "the checkpoints were written before that; if the same command fails again, suspect the "
        "hardware"
    )
    group.compare({"its weights": _hash(step.parameters)}, hint)


def _check_start(step: TrainStep, group: Group) -> None:
    """Check that several processes can train this, and that they start with the same weights."""
    if step.curvature is not None:
        raise InputError(
            "this optimizer measures curvature, which takes a single process: start it "
            "without torchrun"
        )
    hint = "all have to see the same checkpoints, and need the same versions of all libraries"
    group.compare({"the weights that it starts with": _hash(step.parameters)}, hint)


def _hash(tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def share_start(config: RunConfig, step: TrainStep, group: Group | None) -> None:
    """Give all processes the leader's weights that were set from the text; all call this.

    Only the leader computes them, so the result need not be the same on all machines.
    """
    if group is None:
        return
    shared = step.parameters if config.train.grad_init is not None else []
    if not shared and step.model.encoder.config.embedding_start == "cooccurrence":
        shared = [step.model.encoder.tokens.weight]
    with _together():
        for parameter in shared:
            dist.broadcast(parameter.data, 0)


def note_processes(run: RunDir, group: Group | None, progress: Progress, *, resumed: bool) -> None:
    """Record how many processes train, and say so if a resumed run had a different number."""
    events = read_events(run.path, processes=("count",))
    counts = [None, *(event["count"] for event in events if event["event"] == "processes")]
    now = 1 if group is None else group.size
    note_parts(run, "processes", now, counts[-1], progress if resumed else SILENT)


class LeadingStep:
    """The leader's `TrainStep`: all processes do what it is told to do."""

    def __init__(self, step: TrainStep, group: Group, watch: watchdog.Watchdog) -> None:
        self._step = step
        self._group = group
        self._beat = watch.beat

    def prepare(self, row_counts: Iterable[int], rates: Iterable[float]) -> None:
        self._group.send(_COMPILE)
        self._step.prepare(_shares(row_counts, self._step, self._group), rates)

    def gradients(self, rows: Tensor, update: Update) -> Tensor:
        self._beat()
        numbers = update.number, update.first_row, update.rows, update.layers or 0, update.pieces
        self._group.send(_GRADIENTS, update.mask_rate, update.dropped, *map(float, numbers))
        mine = self._group.share(update.rows, self._step.together)
        return _gradients(self._step, rows[mine], update, self._group)

    def apply(self, factor: float) -> Tensor | None:
        self._beat()
        self._group.send(_APPLY, factor)
        return self._step.apply(factor)

    def discard(self) -> None:
        self._group.send(_DISCARD)
        self._step.discard()

    def reload(self) -> None:
        """Have the followers read the newest checkpoint, which the leader has read already."""
        self._group.send(_RELOAD)


@contextmanager
def leading(
    step: TrainStep, group: Group | None, signals: list[str]
) -> Iterator[TrainStep | LeadingStep]:
    """The step for the training loop; the followers end when the loop ends, for whatever reason.

    Args:
        signals: what makes a single process leave an update; several have to finish it together.

    Raises:
        RanksDiffer: the processes start with different weights.
    """
    if group is None:
        step.before_microbatch = step.before_shape = partial(leave_update, signals)
        yield step
        return
    _check_start(step, group)
    with watchdog.Watchdog() as watch:
        step.before_microbatch = watch.beat
        try:
            yield LeadingStep(step, group, watch)
        except (PeerLost, RanksDiffer):
            raise  # nobody is left to tell, or all know already
        except BaseException:
            group.send(_STOP)
            raise
        group.send(_STOP)  # the weights were compared before the leader put averages in their place


def follow(
    config: RunConfig, corpus: Corpus, checkpoints: Path, device: Device, group: Group
) -> None:
    """Do what the leader says until it says stop.

    Args:
        checkpoints: folder of the leader's checkpoints; all processes resume from the newest.

    Raises:
        RanksDiffer: the processes have different weights.
    """
    step = build_for(config, corpus, device)
    if load_checkpoint(checkpoints, step, corpus.sha256).generation is None:
        share_start(config, step, group)
    _check_start(step, group)
    stream = RowStream(corpus, config.seed, config.order)
    with noted_signals(), watchdog.Watchdog() as watch:  # the leader answers signals for all
        step.before_microbatch = watch.beat
        while True:
            what, *values = group.receive()
            if what == _STOP:
                return
            if what == _COMPILE:
                counts = _shares(config.batch.row_counts(), step, group)
                step.prepare(counts, config.mask_rates())
                continue
            watch.beat()
            if what == _GRADIENTS:
                rate, dropped = values[:2]
                number, first_row, count, layers, pieces = (int(value) for value in values[2:])
                # The factor comes with the command to apply; only the leader needs the cost.
                about = (0.0, rate, Work(), layers, pieces, dropped)
                update = Update(number, first_row, count, *about)
                mine = group.share(count, step.together)
                rows = stream.read(first_row + mine.start, mine.stop - mine.start)
                _gradients(step, torch.from_numpy(rows), update, group)
            elif what == _APPLY:
                step.apply(values[0])
            elif what == _COMPARE:
                compare_weights(step, group)
            elif what == _RELOAD:
                load_checkpoint(checkpoints, step, corpus.sha256)
            else:
                step.discard()


def _shares(row_counts: Iterable[int], step: TrainStep, group: Group) -> list[int]:
    parts = (group.share(rows, step.together) for rows in row_counts)
    return sorted({part.stop - part.start for part in parts} - {0})


def _gradients(step: TrainStep, rows: Tensor, update: Update, group: Group) -> Tensor:
    """Compute gradients of this process's rows, sum over all; return the whole update's loss."""
    loss = step.gradients(rows, update, group.share(update.rows, step.together).start)
    group.sum_gradients(step.growth.used(step.parameters))
    if (scales := step.leaves.scales) is not None:  # for the next update, all have the same
        group.reduce(scales.seen, dist.ReduceOp.MAX)
    return group.reduce(loss)
