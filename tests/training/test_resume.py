"""A killed run, started again with the same command, ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from crammed.doctor import TINY
from crammed.files.hashes import sha256
from support.command import crammed, dying, python
from support.text import documents, write_jsonl
from support.training import events


def words(out: Path, text: Path, *more: str) -> list[str]:
    """Of a command that keeps a checkpoint of every update."""
    own = ("optim.name=muon", "model.dropout=0.1", "compute.workers=1")
    often = ("train.checkpoint_seconds=1e-9", "train.log_seconds=1e-9")
    data = ("--data", str(text), "--out", str(out), "--json")
    return ["run", "crammed", *TINY, *own, *often, *more, *data]


def test_kill_9_and_again_gives_the_same_weights(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    budget = ("--budget", "5000tok")
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert crammed(*words(whole, text, *budget)).returncode == 0
    kills = (
        ("crammed.training.update.step:TrainStep.apply", 5),  # within an update
        ("crammed.training.checkpoint:Checkpoints.save", 4),  # an update has no checkpoint yet
        ("crammed.training.checkpoint:save_file", 12),  # a checkpoint is half written
    )
    for function, call in kills:
        killed = python(*dying(function, call), *words(run, text, *budget))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(run.rglob("*.tmp"))
    finished = crammed(*words(run, text, *budget))
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["tokens"] == 4864
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert sha256(run / "final" / name) == sha256(whole / "final" / name)
    resumes = events(run, "resume")
    assert [event["update"] for event in resumes] == [4, 7, 12]
    assert not list(run.rglob("*.tmp"))

    # The finished run is shown, not trained again.
    before = (run / "metrics.jsonl").read_bytes()
    shown = crammed(*words(run, text, *budget))
    assert json.loads(shown.stdout)["heldout"] == result["heldout"]
    assert (run / "metrics.jsonl").read_bytes() == before
