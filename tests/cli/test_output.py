"""What the verbs print."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from crammed.cli.training import run_lines
from support.command import PATIENCE, dying, popen, python
from support.text import documents, write_jsonl

RESULT: dict[str, Any] = {
    "heldout": {"loss@0.15": 3.0, "loss@0.25": 3.5},
    "unigram_cross_entropy": 5.0,
    "export": {"format": "bert"},
    "tokens": 1000,
    "updates": 10,
    "u": 0.5,
    "budget": "1h",
    "exaflop": 0.1,
    "export_dir": "run/export",
    "report": None,
    "mask_token": "[MASK]",
}


def test_a_loss_above_the_unigram_models_is_said_to_be_above() -> None:
    worse = {**RESULT, "heldout": {"loss@0.15": 5.05, "loss@0.25": 5.1}, "tasks": {}}
    said = "5.050 nats with 15 % masked (0.05 nats above the unigram model), 5.100 with 25 %"
    assert dict(run_lines(worse))["held-out loss"] == said


@pytest.mark.parametrize(
    ("untrained", "words"),
    [
        ({"median": 40.0, "spread": 1.5, "seeds": [40.0]}, "untrained model 40.0 (spread 1.5)"),
        (None, "untrained model none"),
        ({"failed": "all predictions are 1"}, "untrained model undefined"),
    ],
)
def test_a_score_is_shown_with_or_without_the_untrained_model(untrained: Any, words: str) -> None:
    entry = {"metric": "f1", "median": 80.0, "spread": 2.0, "official": None}
    lines = dict(run_lines({**RESULT, "tasks": {"mrpc": {**entry, "untrained": untrained}}}))
    assert lines["mrpc"] == f"80.0 f1 (spread 2.0); {words}"


@pytest.mark.parametrize(("closed", "code"), [(True, 75), (False, 2)])
def test_output_that_cannot_be_written_is_one_line(closed: bool, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe, open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "crammed", "recipes", "--json"]
        process = popen(command, stdout=pipe if closed else full, stderr=PIPE, text=True)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    why = "cannot write to standard output: No space left on device"
    assert (
        error
        == f"error: {'nobody reads the output; what is finished is kept' if closed else why}\n"
    )


@pytest.mark.parametrize("by", ["SIGHUP", "SIGTERM"])
def test_a_signal_outside_of_training_keeps_what_is_finished(tmp_path: Path, by: str) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(50))
    words = ["prepare", "--data", str(text), "--out", str(tmp_path / "corpus")]
    stopping = dying("crammed.data.preparation:select_documents", by=by)
    done = python(*stopping, *words, "compute.workers=1")
    assert done.returncode == 75, done.stderr
    assert done.stderr.splitlines()[-1] == "error: interrupted; what is finished is kept"
