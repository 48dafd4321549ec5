"""A whole training run of a tiny model in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from crammed.budget import Clock
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.machine.device import Device
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_lines
from crammed.terminal.progress import SILENT, Progress
from crammed.training.loop import Trained, pretrain
from crammed.training.update.step import TrainStep


def train(
    config: RunConfig,
    corpus: Corpus,
    out: Path,
    device: Device,
    progress: Progress = SILENT,
    clock: Clock = time.monotonic,
) -> Trained:
    """Train in the run directory `out`, or resume there."""
    with RunDir.open(out, config) as run:
        return pretrain(config, corpus, run, device, progress, clock)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    """What a run has noted under a name."""
    return [event for event in read_lines(run / "events.jsonl") if event["event"] == name]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[float]:
    """Interrupt the `number`-th update from now on, and that alone; returns the factors of all."""
    apply, begun = TrainStep.apply, list[float]()

    def applied(step: TrainStep, factor: float) -> Tensor | None:
        begun.append(factor)
        if len(begun) == number:
            raise KeyboardInterrupt
        return apply(step, factor)

    monkeypatch.setattr(TrainStep, "apply", applied)
    return begun


def train_in_two(
    config: RunConfig,
    corpus: Corpus,
    out: Path,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> Trained:
    """Train as `train` does, but stopped in the `number`-th update, with checkpoints of all."""
    begun = interrupt_at(monkeypatch, number)
    with pytest.raises(KeyboardInterrupt):
        train(config, corpus, out, device)
    trained = train(config, corpus, out, device)
    assert len(begun) == trained.work.updates + 1
    return trained
