"""What the benchmark of an update keeps of what it has measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from crammed.config import RunConfig
from crammed.errors import InputError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = ["model.layers=2", "model.width=32", "model.head_dim=16", "tokenizer.vocab_size=512"]


def test_what_stops_a_later_loop_leaves_the_first_one_s_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    step = importlib.import_module("step")

    def stop(config: RunConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(step.PLAIN, "plain, every position", (stop, False))
    out = tmp_path / "result.json"
    with torch._dynamo.config.patch(recompile_limit=8), pytest.raises(KeyboardInterrupt):
        step.main(["crammed", *SMALL], rows=2, updates=1, rounds=1, beside=True, out=out)
    result = json.loads(out.read_text())
    assert (list(result["loops"]), result["rounds"]) == (["ours"], 0)
    assert result["loops"]["ours"]["tokens_per_second"] > 0


def test_why_ours_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    step = importlib.import_module("step")

    def fail(*_: object) -> None:
        raise InputError("the compiler failed: KeyError")

    monkeypatch.setattr(step, "Training", fail)
    out = tmp_path / "result.json"
    with torch._dynamo.config.patch(recompile_limit=8), pytest.raises(InputError):
        step.main(["crammed", *SMALL], rows=2, updates=1, rounds=1, beside=True, out=out)
    result = json.loads(out.read_text())
    assert result["loops"] == {}
    assert result["failed"] == {"ours": "InputError: the compiler failed: KeyError"}
