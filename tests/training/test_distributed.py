"""Two processes train what one would, and neither waits for the dead."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.doctor import TINY
from crammed.rundir import read_metrics
from crammed.training.distributed import Group

MODEL = [word for word in TINY if not word.startswith(("data.", "tokenizer."))]


def test_a_group_of_gpus_has_the_peak_of_all(cpu: Device) -> None:
    gpu = dataclasses.replace(cpu, torch=torch.device("cuda"), peak=1e15, peak_source="table")
    assert Group(0, 2).whole(gpu).mfu_peak == 2e15
    assert Group(0, 2).whole(cpu) == cpu  # whose cores the processes share
    unknown = dataclasses.replace(gpu, peak=None)
    assert Group(0, 2).whole(unknown).peak is None


def start(corpus: Corpus, out: Path, processes: int, *words: str) -> list[subprocess.Popen[str]]:
    """The command as ``torchrun`` starts it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    by_key = {word.partition("=")[0]: word for word in (*MODEL, *words)}
    command = [sys.executable, "-m", "crammed", "pretrain", "crammed", *by_key.values()]
    command += ["--corpus", str(corpus.path), "--out", str(out), "--json"]
    several = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **several, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def finish(processes: list[subprocess.Popen[str]], seconds: float = 120) -> list[str]:
    return [process.communicate(timeout=seconds)[1] for process in processes]


@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    # Muon multiplies in 16 bits where the processor can; a sum's last bit decides what they become.
    [("adamw", "float32", 1e-4), ("muon", "float32", 5e-2), ("adamw", "float16", 2e-2)],
)
def test_two_processes_train_what_one_does(
    tmp_path: Path, corpus: Corpus, optimizer: str, dtype: str, tolerance: float
) -> None:
    # Seven rows an update: the processes have different shares.
    words = [f"optim.name={optimizer}", "batch.rows=7", "train.log_seconds=0.001"]
    words += [f"compute.dtype={dtype}", "--budget=12updates"]
    for name, count in (("one", 1), ("two", 2)):
        processes = start(corpus, tmp_path / name, count, *words)
        errors = finish(processes)
        assert [p.returncode for p in processes] == [0] * count, errors
    finished = start(corpus, tmp_path / "two", 2, *words)
    errors = finish(finished)
    assert [p.returncode for p in finished] == [0, 0], errors
    one, two = (
        load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two")
    )
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= tolerance * weight.norm() + 1e-4, name
    losses = [[p["loss"] for p in read_metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=max(1e-4, tolerance / 20))


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_dies_the_other_ends_and_both_go_on(
    tmp_path: Path, corpus: Corpus, rank: int
) -> None:
    out = tmp_path / "run"
    words = ["train.checkpoint_seconds=0.1", "--budget=400updates"]
    processes = start(corpus, out, 2, *words)
    deadline = time.monotonic() + 100
    while not list((out / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(processes[rank].pid, signal.SIGKILL)
    errors = finish(processes, 60)
    assert processes[1 - rank].returncode == 1, errors
    assert "another process of this run ended" in errors[1 - rank]
    again = start(corpus, out, 2, *words)
    errors = finish(again)
    assert [p.returncode for p in again] == [0, 0], errors
    assert '"resume"' in (out / "events.jsonl").read_text()


def test_several_processes_need_one_directory(corpus: Corpus) -> None:
    command = [sys.executable, "-m", "crammed", "pretrain", *MODEL, "--corpus", str(corpus.path)]
    env = {**os.environ, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    done = subprocess.run(
        [*command, "--budget", "2updates"],
        env={**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--out RUN_DIR" in done.stderr
