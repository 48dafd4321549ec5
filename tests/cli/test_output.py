"""What the verbs print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from crammed.doctor import TINY
from crammed.interface.lines import run_lines
from crammed.runs.directory import RunDir
from support.command import PATIENCE, crammed, dying, popen, prepared, python
from support.text import documents, tiny, write_jsonl

RESULT: dict[str, Any] = {
    "heldout": {"loss@0.15": 3.0, "loss@0.25": 3.5},
    "unigram_cross_entropy": 5.0,
    "export": {"format": "bert"},
    "tokens": 1000,
    "epochs": 1.0,
    "updates": 10,
    "u": 0.5,
    "budget": "1h",
    "exaflop": 0.1,
    "export_dir": "run/export",
    "example": "This is a [MASK].",
    "report": None,
    "mask_token": "[MASK]",
    "train_longer": None,
}


def test_a_loss_above_the_unigram_models_is_said_to_be_above(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny("crammed")) as run:
        worse = {**RESULT, "run_dir": str(run.path), "tasks": {}}
    worse |= {"heldout": {"loss@0.15": 5.05, "loss@0.25": 5.1}}
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


def test_what_to_do_about_a_run_is_said_with_its_result() -> None:
    twin = {"median": 79.0, "spread": 1.0}
    entry = {"metric": "f1", "median": 80.0, "spread": 2.0, "untrained": twin}
    entry |= {"gain": [-1.0, 3.0], "linear": 81.0}
    lines = run_lines({**RESULT, "train_longer": "it could", "tasks": {"mrpc": entry}})
    notes = [words for name, words in lines if name == "note"]
    assert [note[:17] for note in map(str, notes)] == [
        "it could",
        "mrpc: pretraining",
        "TF-IDF with a lin",
    ]


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
        error == f"error: {'the output was closed; what is finished is kept' if closed else why}\n"
    )


def test_a_terminal_that_is_not_utf8_shows_codes(tmp_path: Path) -> None:
    (tmp_path / "\u8bad\u7ec3").mkdir()
    latin = "import sys; sys.stdout.reconfigure(encoding='latin-1')"
    done = python(*prepared(latin), "runs", "\u8bad\u7ec3", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("0 runs below \\u8bad\\u7ec3\n", "")


@pytest.mark.parametrize(("by", "work"), [("SIGHUP", ()), ("SIGTERM", ("--work", "work"))])
def test_a_signal_outside_of_training_keeps_what_is_finished(
    tmp_path: Path, by: str, work: tuple[str, ...]
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    words = ["prepare", *TINY, "compute.workers=1", "--data", str(text), "--out", "corpus", *work]
    stopping = dying("crammed.data.preparing.driver:select_documents", by=by)
    done = python(*stopping, *words, cwd=tmp_path)
    assert done.returncode == 75, done.stderr
    kept = "what is finished is kept, and the same command continues from there"
    assert done.stderr.splitlines()[-1] == f"error: interrupted; {kept}"
    again = crammed(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "\nreading and cleaning  (" in again.stderr, "nothing is left to clean"


def test_a_command_that_keeps_nothing_does_not_say_that_it_does() -> None:
    done = python(*dying("crammed.rules.recipe:recipe_names", by="SIGTERM"), "recipes")
    assert (done.returncode, done.stderr) == (75, "error: interrupted\n")


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("library", ["typer", "pydantic"])
def test_a_signal_that_an_import_swallows_ends_the_command(
    tmp_path: Path, by: str, library: str
) -> None:
    """One library is imported before the command line has begun, the other by a verb."""
    (tmp_path / "signalling.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{by})")
    stub = "try:\n    import signalling\nexcept BaseException:\n    pass\n"
    (tmp_path / f"{library}.py").write_text(stub)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = python("-m", "crammed", "recipes", "crammed", env={"PYTHONPATH": path})
    assert done.returncode == 75, done.stderr
    assert done.stderr == "error: interrupted\n"


def test_leaving_in_an_import_ends_the_workers(tmp_path: Path) -> None:
    (tmp_path / "signalling.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"
    )
    script = """
import multiprocessing, signal
from crammed.terminal.stopping import leave
signal.signal(signal.SIGTERM, leave)
context = multiprocessing.get_context("spawn")
ours, theirs = context.Pipe()
work = "import time; ready.send(1); time.sleep(600); open('outlived', 'w')"
context.Process(target=exec, args=(work, {"ready": theirs})).start()
ours.recv()
import signalling
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    # By now the worker, which had the same pipes, has ended as well.
    assert done.returncode == 75, done.stderr
    assert not (tmp_path / "outlived").exists()


def closed(stream: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """``crammed`` with a standard stream closed by the shell."""
    shell = ["sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-m", "crammed", *words]
    return subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE)


def test_a_closed_standard_input_holds_no_text(tmp_path: Path) -> None:
    done = closed("<&-", "prepare", "--data", "-", "--out", tmp_path / "corpus")
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line == "error: standard input is closed: pipe text into it, or name a file"
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_output_is_no_fault(stream: str) -> None:
    done = closed(stream, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (stream == "2>&-")
