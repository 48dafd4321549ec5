"""The training loops that are counted on paper: ours and the plain ones of the benchmark."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from crammed.config import RunConfig
from crammed.machine.device import Device

Update = Callable[[int], object]
"""Runs an update of this many microbatches."""
WHOLE = "ours, one graph"
"""Ours, with the whole model compiled as one graph."""


def loop_of(name: str, config: RunConfig) -> Update:
    """A loop by its name in ``benchmarks/step.py``, on fake tensors of the GPU.

    Args:
        config: with the rows of a microbatch.
    """
    _make_on_device()
    rows = config.compute.microbatch_rows
    assert rows is not None
    common, steps = importlib.import_module("common"), importlib.import_module("step")
    device = importlib.import_module("crammed.machine.device").choose_device(config.compute)
    if name in ("ours", WHOLE):
        if name == WHOLE:
            device = _Whole(**vars(device))
        training = common.Training(config, device, rows)

        def ours(microbatches: int) -> None:
            training.rows = microbatches * rows
            training.update(0)

        return ours
    make, masked = steps.PLAIN[name]
    steps.PLAIN[name] = (_made_there(make), masked)
    plain = {n: steps.plain_loop(config, device, n * rows, rows, name) for n in (1, 2)}
    return lambda microbatches: plain[microbatches](0)


class _Whole(Device):
    """A device for which whole models are compiled, not regions."""

    @property
    def regional(self) -> bool:
        return False


def loops() -> Sequence[str]:
    return ("ours", WHOLE, *importlib.import_module("step").PLAIN)


def _make_on_device() -> None:
    """Make models on the device they train on: fake tensors cannot be moved in place or pinned."""
    build: Any = importlib.import_module("crammed.training.update.build")
    step: Any = importlib.import_module("crammed.training.update.step")
    benchmark: Any = importlib.import_module("step")
    model: Any = importlib.import_module("crammed.model.encoder").MaskedLM

    def new_model(config: RunConfig, vocab_size: int, device: torch.device) -> nn.Module:
        with torch.device("cuda"):
            made: nn.Module = model(config.model, vocab_size)
        return made

    build.new_model = benchmark.new_model = new_model
    step.moved = lambda rows, device: rows.to(device)
    module: Any = nn.Module
    module.to = lambda self, *args, **kwargs: self


def _made_there(make: Callable[[RunConfig], Any]) -> Callable[[RunConfig], Any]:
    def made(config: RunConfig) -> Any:
        with torch.device("cuda"):
            return make(config)

    return made
