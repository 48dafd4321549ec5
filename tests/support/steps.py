"""Single updates of a tiny model, for tests of number formats and of compiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crammed.budget import Work
from crammed.config import RunConfig
from crammed.data.tokenization.tokenizer import Specials
from crammed.machine.device import Device
from crammed.model.encoder import MaskedLM
from crammed.training.update.build import build
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.text import tiny

SPECIALS = Specials(pad=0, unk=1, cls=2, sep=3, mask=4)


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
