"""A whole training run of a tiny model in this process."""

from __future__ import annotations

import time
from pathlib import Path

from crammed.budget import Clock
from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.machine.device import Device
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT, Progress
from crammed.training.loop import Trained, pretrain


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
