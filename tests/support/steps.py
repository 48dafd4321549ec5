"""Single updates of a tiny model, for tests of number formats and of compiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.tokenization.tokenizer import Specials
from crammed.machine.device import Device, can_compile_for_cpu
from crammed.model.encoder import MaskedLM
from crammed.runs.directory import RunDir
from crammed.training.checkpoint import Checkpoints, load_checkpoint
from crammed.training.session import Session
from crammed.training.update.build import build
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.text import tiny

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
needs_compiler = pytest.mark.skipif(
    not can_compile_for_cpu(), reason="no C++ compiler or Python headers"
)
"""A mark of tests in which PyTorch generates code for a CPU."""


def step_with(
    device: Device, config: RunConfig | None = None, **changes: Any
) -> tuple[TrainStep, MaskedLM]:
    config = config or tiny("crammed", "batch.rows=16")
    device = dataclasses.replace(device, **changes)
    step = build(config, 256, SPECIALS, device)
    return step, step.model


def after_gradients(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[TrainStep, Update, Tensor], Tensor]
) -> None:
    """Call `change` after the gradients of every update; it returns the loss to use instead."""
    original = TrainStep.gradients

    def gradients(self: TrainStep, rows: Tensor, update: Update) -> Tensor:
        return change(self, update, original(self, rows, update))

    monkeypatch.setattr(TrainStep, "gradients", gradients)


def rows_of(count: int, seed: int = 0) -> Tensor:
    return torch.randint(5, 256, (count, 32), generator=torch.Generator().manual_seed(seed))


def update_of(count: int, number: int = 0) -> Update:
    return Update(number, count * number, count, 1.0, 0.25, Work())


def vector(tensors: Iterable[Tensor | None]) -> Tensor:
    """All numbers of tensors, such as the parameters of a model, one after the other."""
    return torch.cat([each.detach().flatten() for each in tensors if each is not None])


def gradients_of(step: TrainStep) -> Tensor:
    return vector(parameter.grad for parameter in step.parameters)


def loss_and_gradients(config: RunConfig, device: Device, update: Update) -> list[Tensor | None]:
    """Those of the first update of a model."""
    step = build(config, 256, SPECIALS, device)
    step.prepare([update.rows], [update.mask_rate])
    assert all(p.grad is None for p in step.parameters)  # warming up trains nothing
    loss = step.gradients(rows_of(update.rows), update)
    return [loss, *(p.grad for p in step.parameters)]


def check_microbatches(config: RunConfig, device: Device, parts: int = 5, **changes: Any) -> None:
    """An update has the same gradients in one part as in parts of so many rows."""
    update = dataclasses.replace(update_of(14), **changes)
    whole, found = (
        loss_and_gradients(config, dataclasses.replace(device, microbatch_rows=rows), update)
        for rows in (16, parts)
    )
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)


def check_compiled(
    config: RunConfig, device: Device, error: float | None = None, **changes: Any
) -> None:
    """An update has the same gradients whether it is compiled or not.

    Args:
        error: of all gradients together, in a coarse format; None compares each number.
    """
    update = dataclasses.replace(update_of(8), **changes)
    plain, compiled = (
        loss_and_gradients(config, dataclasses.replace(device, compile=compile), update)
        for compile in (False, True)
    )
    if error is None:
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)
        return
    torch.testing.assert_close(compiled[0], plain[0], rtol=min(error, 1e-3), atol=0.0)
    exact = vector(plain[1:])
    assert (vector(compiled[1:]) - exact).norm() < error * exact.norm()


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    """Whether tensors are the same to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check_resumed(
    config: RunConfig,
    device: Device,
    out: Path,
    train: Callable[[TrainStep, range], object],
    updates: int = 6,
    kept: int = 3,
) -> TrainStep:
    """A step that goes on from a checkpoint has the bits of one that was never stopped.

    Args:
        train: does the updates of these numbers.
        kept: number of updates before the checkpoint.
    """
    whole, first, second = (build(config, 256, SPECIALS, device) for _ in range(3))
    train(whole, range(updates))
    train(first, range(kept))
    with RunDir.open(out, config) as run:
        Checkpoints(Session.untimed(run, first, corpus_sha256="corpus")).save(Work(updates=kept))
    assert load_checkpoint(run.checkpoints, second, "corpus").state.work.updates == kept
    train(second, range(kept, updates))
    assert same(whole.parameters, second.parameters)
    for one, other in zip(whole.parameters, second.parameters, strict=True):
        wanted, found = whole.optimizer.saved(one), second.optimizer.saved(other)
        assert wanted.keys() == found.keys()
        assert same(wanted.values(), (found[name] for name in wanted))
    return second
