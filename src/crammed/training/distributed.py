"""Several processes train one model: `torchrun` starts them, the first one leads.

The leader runs the training loop as if it were alone, with the only clock; before each part of an
update it tells the others what to do. Every process computes the gradient of its share of the rows,
the sum goes to all, and all apply it. So the loss is that of one device at the same batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crammed.budget import Ledger, Work
from crammed.config import RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.device import Device
from crammed.errors import PeerLost
from crammed.training.build import build
from crammed.training.checkpoint import load_checkpoint
from crammed.training.plan import Planner, Update
from crammed.training.signals import noted_signals
from crammed.training.step import TrainStep
from crammed.workers import started

_STOP, _GRADIENTS, _APPLY, _DISCARD, _COMPILE = range(5)
_LENGTH = 8
"""Numbers of a command: what to do, and the fields of an update."""


@dataclass(frozen=True)
class Group:
    """The processes that train together.

    Attributes:
        rank: 0 leads.
        size: how many there are.
    """

    rank: int
    size: int

    def whole(self, device: Device) -> Device:
        """This process's device with what the GPUs of all processes reach together."""
        if device.peak is None or device.torch.type == "cpu":  # whose cores they share
            return device
        return replace(device, peak=self.size * device.peak)

    def send(self, what: int, *values: float) -> None:
        """Tell the others what to do; the leader alone."""
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
        """The rows of an update that this process works on."""
        bounds = [rows * n // self.size for n in (self.rank, self.rank + 1)]
        return slice(*bounds)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes, in all of them."""
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
    """Names what it means when the others are gone."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(
            "another process of this run ended: type the same command again to go on from the "
            "last checkpoint"
        ) from error


@contextmanager
def joined_group(device: Device) -> Iterator[Group | None]:
    """The group that ``torchrun`` put this process into; None for a process of its own.

    Raises:
        PeerLost: another process of the group ended. What binds this one to it can then neither be
            used nor taken down: leave without the interpreter's usual farewell.
    """
    if started() == 1:
        yield None
        return
    kind = device.torch.type
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Commands travel from CPU to CPU, so that no process waits for its GPU to read one.
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
    """A `TrainStep` of the leader: what it is told to do, all processes do."""

    def __init__(self, step: TrainStep, group: Group) -> None:
        self._step = step
        self._group = group

    def prepare(self, row_counts: Iterable[int], rates: Iterable[float]) -> None:
        self._group.send(_COMPILE)
        self._step.prepare(_shares(row_counts, self._group), rates)

    def gradients(self, rows: Tensor, update: Update) -> Tensor:
        values = astuple(update)[:-1]  # what it costs concerns the leader alone
        self._group.send(_GRADIENTS, *map(float, values))
        return _gradients(self._step, rows[self._group.share(update.rows)], update, self._group)

    def apply(self, lr: float) -> Tensor | None:
        self._group.send(_APPLY, lr)
        return self._step.apply(lr)

    def discard(self) -> None:
        self._group.send(_DISCARD)
        self._step.discard()


@contextmanager
def leading(step: TrainStep, group: Group | None) -> Iterator[TrainStep | LeadingStep]:
    """The step for the training loop; when the loop ends, in whatever way, the others end too."""
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
        checkpoints: where the leader's are; both go on from the newest.
    """
    model, optimizer, step = build(config, corpus, device)
    if saved := load_checkpoint(checkpoints, model, optimizer, corpus.sha256):
        step.restore(saved.loss_scale)
    stream = RowStream(corpus, config.seed, config.order)
    planner = Planner(config, corpus.vocab_size, Ledger(()), device.synchronize)
    model.train()
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
                u, lr, mask_rate = values[3:6]
                update = Update(number, first_row, count, u, lr, mask_rate, Work())
                mine = group.share(count)
                rows = stream.read(first_row + mine.start, mine.stop - mine.start)
                _gradients(step, torch.from_numpy(rows), update, group)
            elif what == _APPLY:
                step.apply(values[0])
            else:
                step.discard()


def _shares(row_counts: Iterable[int], group: Group) -> list[int]:
    parts = (group.share(rows) for rows in row_counts)
    return sorted({part.stop - part.start for part in parts} - {0})


def _gradients(step: TrainStep, rows: Tensor, update: Update, group: Group) -> Tensor:
    """Gradients of this process' rows, then the sum of all; the loss of the whole update."""
    loss = step.gradients(rows, update, group.share(update.rows).start)
    group.sum_gradients(step.parameters)
    return group.sum(loss)
