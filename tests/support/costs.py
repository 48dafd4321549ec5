"""Training that does nothing except advance a clock by what it would cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.planning.parts import PartTimes
from crammed.runs.directory import RunDir
from crammed.training import checkpoint, heldout_meter
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.text import FakeClock, tiny


def timed_config(*overrides: str, budget: str) -> RunConfig:
    """A tiny recipe with updates of eight rows and this budget."""
    return tiny("crammed", "batch.rows=8", "batch.ramp=0.0", *overrides, budget={"limit": budget})


def play_costs(patch: pytest.MonkeyPatch, clock: FakeClock, speed: PartTimes) -> None:
    """Replace training by advancing this clock by the times of `speed`."""

    def gradients(step: TrainStep, rows: torch.Tensor, update: Update, first: int = 0) -> object:
        predicted = predicted_positions(update.mask_rate, rows.shape[1])
        clock.now += speed.seconds(len(rows), predicted)
        if not hasattr(step, "warm"):
            clock.now += speed.first
            patch.setattr(step, "warm", True, raising=False)
        return torch.zeros(())

    def lasting(seconds: float, result: object) -> Callable[..., object]:
        def wait(*_: object, **__: object) -> object:
            clock.now += seconds
            return result

        return wait

    patch.setattr(TrainStep, "gradients", gradients)
    patch.setattr(TrainStep, "apply", lasting(0.0, torch.zeros(())))
    patch.setattr(TrainStep, "prepare", lasting(speed.compile, None))
    patch.setattr(RunDir, "heartbeat", lasting(speed.log, None))
    patch.setattr(checkpoint, "save_file", lasting(speed.checkpoint / 2, None))
    patch.setattr(heldout_meter, "heldout_loss", lasting(speed.evaluate, {"loss@0.15": 1.0}))
