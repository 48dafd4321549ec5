"""Where a run computes, given what it trains and how it began."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from crammed.machine.device import Device
from crammed.planning import settling
from support.text import tiny


@pytest.mark.parametrize(
    ("words", "events", "compiled"),
    [
        ([], None, False),  # a new run of a small model is faster in lanes
        (["compute.compile=on"], None, True),
        (["model.width=288"], None, True),
        (["compute.lanes=1"], None, True),
        ([], "", True),  # begun by a version without lanes
        ([], '{"event": "lanes", "count": 2}', False),
    ],
)
def test_small_models_run_in_lanes_instead_of_compiled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu: Device,
    words: list[str],
    events: str | None,
    compiled: bool,
) -> None:
    would = dataclasses.replace(cpu, compile=True, reasons=("cpu", "torch.compile on: it pays"))
    monkeypatch.setattr(settling, "choose_device", lambda *_: would)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    if events is not None:
        (tmp_path / "metrics.jsonl").write_text("{}\n")
        (tmp_path / "events.jsonl").write_text(events)
    device = settling.device_of(tiny("crammed", "batch.rows=64", *words), None, tmp_path)
    assert device.compile is compiled
    assert device.reasons[-1].startswith(f"torch.compile {'on' if compiled else 'off'}")
    would = dataclasses.replace(would, torch=torch.device("cuda"))  # the run goes on there
    device = settling.device_of(tiny("crammed", "batch.rows=64", *words), None, tmp_path)
    assert device.compile
