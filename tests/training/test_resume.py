"""A killed run, started again with the same command, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.doctor import TINY
from crammed.files import sha256
from crammed.pipeline import train_and_export
from crammed.progress import SILENT
from crammed.rundir import RunDir, read_lines, read_metrics
from support.text import documents, tiny, write_jsonl

COMMON = (
    *TINY,
    "optim.name=muon",
    "model.dropout=0.1",
    "train.checkpoint_seconds=0.2",
    "train.log_seconds=0.1",
)


def command(out: Path, text: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        *("-m", "crammed", "run", "crammed", *COMMON, *more),
        *("--data", str(text), "--out", str(out), "--json"),
    ]


def test_kill_9_and_again_gives_the_same_weights(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    budget = ("--budget", "60000tok")
    whole = tmp_path / "whole"
    subprocess.run(command(whole, text, *budget), check=True, capture_output=True)

    run = tmp_path / "run"
    kills = 0
    for _ in range(30):
        process = subprocess.Popen(
            command(run, text, *budget),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        seen = set((run / "checkpoints").glob("step-*"))
        while kills < 3 and process.poll() is None:
            fresh = set((run / "checkpoints").glob("step-*")) - seen
            if fresh:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        printed, _ = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert kills >= 2
    result = json.loads(printed)
    assert result["tokens"] == 59904
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert sha256(run / "final" / name) == sha256(whole / "final" / name)
    resumes = [e for e in read_lines(run / "events.jsonl") if e["event"] == "resume"]
    assert len(resumes) == kills
    assert all(event["update"] > 0 for event in resumes)
    assert not list(run.rglob("*.tmp"))

    # The finished run is shown, not trained again.
    before = (run / "metrics.jsonl").read_bytes()
    shown = subprocess.run(command(run, text, *budget), check=True, capture_output=True, text=True)
    assert json.loads(shown.stdout)["heldout"] == result["heldout"]
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("moment", ["read_and_clean", "_finish_rows"])
def test_kill_9_while_preparing_leaves_nothing_that_is_taken_for_complete(
    tmp_path: Path, moment: str
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    run = tmp_path / "run"
    script = (
        "import os, signal, sys\n"
        "import crammed.data.preparation as p\n"
        f"name = {moment!r}\n"
        "owner = p if hasattr(p, name) else p._Preparation\n"
        "old = getattr(owner, name)\n"
        "def die(*a, **k):\n"
        "    old(*a, **k)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "setattr(owner, name, die)\n"
        "from crammed.cli.app import main\n"
        "main()\n"
    )
    arguments = command(run, text, "--budget", "3updates")
    killed = subprocess.run([sys.executable, "-c", script, *arguments[3:]], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert not (run / "corpus").exists()
    assert (run / ".corpus.preparing").exists()
    subprocess.run(arguments, check=True, capture_output=True)
    assert not (run / ".corpus.preparing").exists()


def test_training_is_not_lost_to_what_fails_after_it(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", budget={"limit": "2s"})  # far from the first checkpoint

    def failing(*_: object) -> None:
        raise OSError("No space left on device")

    with RunDir.open(tmp_path / "run", config) as run, monkeypatch.context() as patched:
        patched.setattr("crammed.pipeline.export", failing)
        with pytest.raises(OSError, match="No space"):
            train_and_export(run, corpus, cpu, SILENT)
    trained = read_metrics(run.path)[-1]
    with RunDir.open(run.path, config) as again:
        summary = train_and_export(again, corpus, cpu, SILENT)
    assert (summary["updates"], summary["tokens"]) == (trained["update"], trained["tokens"])
    assert summary["charged_seconds"] == pytest.approx(2.0, abs=0.5)
    assert not run.checkpoints.exists()  # of a finished run
