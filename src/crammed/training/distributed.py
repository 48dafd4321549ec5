"""Several processes train one model: `torchrun` starts them, and the first one leads.

The leader runs the training loop as if it were alone, and has the only clock; before each part of
an update it tells the followers what to do. Every process computes the gradient of its share of the
rows, and all apply the sum. So the loss is that of one device with the same batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crammed.budget import Ledger, Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.tokenization.tokenizer import Specials
from crammed.device import Device
from crammed.errors import PeerLost
from crammed.training.build import build
from crammed.training.checkpoint import load_checkpoint
from crammed.training.plan import Planner, Update
from crammed.training.signals import noted_signals
from crammed.training.step import TrainStep
from crammed.workers import world_size

_STOP, _GRADIENTS, _APPLY, _DISCARD, _COMPILE, _RELOAD = range(6)
_LENGTH = 5
"""Numbers in a command: what to do, and what the followers need to know of an update."""


@dataclass(frozen=True)
class Group:
    """The processes that train together.

    Attributes:
        rank: number of this process; 0 leads.
        size: how many processes there are.
    """

    rank: int
    size: int

    def whole(self, device: Device) -> Device:
        """This process's device with the peak speed of all processes' GPUs together."""
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
        """Wait for the leader's next command."""
        command = torch.zeros(_LENGTH, dtype=torch.float64)
        with _together():
            dist.broadcast(command, 0)
        return [float(value) for value in command.tolist()]

    def share(self, rows: int) -> slice:
        """Which of so many rows of an update this process works on."""
        bounds = [rows * n // self.size for n in (self.rank, self.rank + 1)]
        return slice(*bounds)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients in every process by the sum over all processes."""
        listed = list(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in listed]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _together():
            dist.all_reduce(flat)
        sizes = [parameter.numel() for parameter in listed]
        for parameter, part in zip(listed, flat.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        with _together():
            dist.all_reduce(value)
        return value


@contextmanager
def _together() -> Iterator[None]:
    """Say what it means when communication fails: another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            "another process of this run ended: type the same command again to go on from the "
            "last checkpoint"
        ) from error


@contextmanager
def joined_group(device: Device) -> Iterator[Group | None]:
    """The group that ``torchrun`` put this process into; None if it was started alone.

    Raises:
        PeerLost: another process of the group ended. The connection can then neither be used nor
            closed, so the caller has to exit without the interpreter's usual cleaning up.
    """
    if world_size() == 1:
        yield None
        return
    kind = device.torch.type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Commands travel between CPUs, so that no process waits for its GPU to read one.
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    whole = True
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    except PeerLost:
        whole = False
        raise
    finally:
        if whole:
            dist.destroy_process_group()


class LeadingStep:
    """The leader's `TrainStep`: what it is told to do, all processes do."""

    def __init__(self, step: TrainStep, group: Group) -> None:
        self._step = step
        self._group = group

    def prepare(self, row_counts: Iterable[int], rates: Iterable[float]) -> None:
        self._group.send(_COMPILE)
        self._step.prepare(_shares(row_counts, self._group), rates)

    def gradients(self, rows: Tensor, update: Update) -> Tensor:
        numbers = (update.number, update.first_row, update.rows, update.mask_rate)
        self._group.send(_GRADIENTS, *map(float, numbers))
        return _gradients(self._step, rows[self._group.share(update.rows)], update, self._group)

    def apply(self, factor: float) -> Tensor | None:
        self._group.send(_APPLY, factor)
        return self._step.apply(factor)

    def discard(self) -> None:
        self._group.send(_DISCARD)
        self._step.discard()

    def reload(self) -> None:
        """Have the followers read the newest checkpoint, which the leader has read already."""
        self._group.send(_RELOAD)


def reload_followers(step: TrainStep | LeadingStep) -> None:
    """Have the followers, if there are any, go back to the newest checkpoint."""
    if isinstance(step, LeadingStep):
        step.reload()


@contextmanager
def leading(step: TrainStep, group: Group | None) -> Iterator[TrainStep | LeadingStep]:
    """The step for the training loop; the followers end when the loop ends, however it does."""
    if group is None:
        yield step
        return
    try:
        yield LeadingStep(step, group)
    finally:
        group.send(_STOP)


def follow(
    config: RunConfig, corpus: Corpus, checkpoints: Path, device: Device, group: Group
) -> None:
    """Do what the leader says until it says stop.

    Args:
        checkpoints: folder of the leader's checkpoints; all processes go on from the newest.
    """
    step = build(config, corpus.vocab_size, Specials.of(corpus.tokenizer), device)
    load_checkpoint(checkpoints, step, corpus.sha256)
    stream = RowStream(corpus, config.seed, config.order)
    planner = Planner(config, corpus.vocab_size, Ledger(()), device.synchronize)
    with noted_signals():  # the leader answers them for all
        while True:
            what, *values = group.receive()
            if what == _STOP:
                return
            if what == _COMPILE:
                counts = _shares(planner.all_row_counts(), group)
                step.prepare(counts, planner.all_mask_rates())
            elif what == _GRADIENTS:
                number, first_row, count = (int(value) for value in values[:3])
                # The factor comes with the command to apply; the cost concerns the leader alone.
                update = Update(number, first_row, count, 0.0, values[3], Work())
                mine = group.share(count)
                rows = stream.read(first_row + mine.start, mine.stop - mine.start)
                _gradients(step, torch.from_numpy(rows), update, group)
            elif what == _APPLY:
                step.apply(values[0])
            elif what == _RELOAD:
                load_checkpoint(checkpoints, step, corpus.sha256)
            else:
                step.discard()


def _shares(row_counts: Iterable[int], group: Group) -> list[int]:
    parts = (group.share(rows) for rows in row_counts)
    return sorted({part.stop - part.start for part in parts} - {0})


def _gradients(step: TrainStep, rows: Tensor, update: Update, group: Group) -> Tensor:
    """Compute gradients of this process's rows and sum over all; return the whole update's loss."""
    loss = step.gradients(rows, update, group.share(update.rows).start)
    group.sum_gradients(step.parameters)
    return group.sum(loss)
