"""What a run settles on, on a machine of a given speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crammed.config import ComputeConfig, RunConfig
from crammed.machine.device import choose_device
from crammed.planning.settling import settle
from crammed.planning.speed import Measured
from crammed.rules.choosing import Asked, Chosen
from crammed.terminal.progress import SILENT


def settled(asked: Asked, rows: float | None, speed: Callable[[RunConfig], float]) -> Chosen:
    """What `settle` chooses if training reaches this many FLOP/s with a configuration."""
    with pytest.MonkeyPatch.context() as patch:
        measured = "crammed.planning.settling.training_speed"
        patch.setattr(measured, lambda config, device: Measured(speed(config), False))
        return settle(asked, rows, choose_device(ComputeConfig()), SILENT)
