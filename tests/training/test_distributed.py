"""Two processes train what one would, and neither waits for the dead."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from crammed.data.corpus import Corpus
from crammed.device import Device
from crammed.doctor import TINY
from crammed.rundir import read_lines, read_metrics
from crammed.training.distributed import Group
from support.command import PATIENCE, crammed, dying, started

CRAMMED = ["-m", "crammed"]
MODEL = [word for word in TINY if not word.startswith(("data.", "tokenizer."))]


def test_a_group_of_gpus_has_the_peak_of_all(cpu: Device) -> None:
    gpu = dataclasses.replace(cpu, torch=torch.device("cuda"), peak=1e15, peak_source="table")
    assert Group(0, 2).whole(gpu).mfu_peak == 2e15
    assert Group(0, 2).whole(cpu) == cpu  # whose cores the processes share
    unknown = dataclasses.replace(gpu, peak=None)
    assert Group(0, 2).whole(unknown).peak is None


@contextlib.contextmanager
def group(
    corpus: Corpus, out: Path, commands: Sequence[list[str]], *words: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """The command as ``torchrun`` starts it, once for each of `commands`."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    by_key = {word.partition("=")[0]: word for word in (*MODEL, *words)}
    given = ["pretrain", "crammed", *by_key.values()]
    given += ["--corpus", str(corpus.path), "--out", str(out), "--json"]
    size = str(len(commands))
    several = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(
                started(
                    *command,
                    *given,
                    env={**several, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank, command in enumerate(commands)
        ]


def train(corpus: Corpus, out: Path, processes: int, *words: str) -> None:
    """Run the group to its end, which must be a good one."""
    with group(corpus, out, [CRAMMED] * processes, *words) as members:
        errors = [member.communicate(timeout=PATIENCE)[1] for member in members]
        assert [member.returncode for member in members] == [0] * processes, errors


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
        train(corpus, tmp_path / name, count, *words)
    train(corpus, tmp_path / "two", 2, *words)  # a finished run is shown by both
    one, two = (
        load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two")
    )
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= tolerance * weight.norm() + 1e-4, name
    losses = [[p["loss"] for p in read_metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=max(1e-4, tolerance / 20))


def test_several_processes_go_back_together(tmp_path: Path, corpus: Corpus) -> None:
    rates = ("optim.lr=1e18", "train.divergence.then=lower", "train.divergence.factor=1e-20")
    for name, count in (("one", 1), ("two", 2)):
        train(corpus, tmp_path / name, count, *rates, "--budget=12updates")
        assert [
            e["update"]
            for e in read_lines(tmp_path / name / "events.jsonl")
            if e["event"] == "back"
        ] == [0]
    one, two = (
        load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two")
    )
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= 1e-4 * weight.norm() + 1e-4, name


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_dies_the_other_ends_and_both_go_on(
    tmp_path: Path, corpus: Corpus, rank: int
) -> None:
    out = tmp_path / "run"
    words = ["train.checkpoint_seconds=1e-9", "--budget=12updates"]
    commands = [CRAMMED, CRAMMED]
    commands[rank] = dying("crammed.training.step:TrainStep.apply", call=7)
    with group(corpus, out, commands, *words) as members:
        errors = [member.communicate(timeout=PATIENCE)[1] for member in members]
    error = errors[1 - rank]
    assert members[rank].returncode == -signal.SIGKILL, errors[rank]
    assert members[1 - rank].returncode == 1, error
    assert "another process of this run ended" in error
    train(corpus, out, 2, *words)
    resumed = [e for e in read_lines(out / "events.jsonl") if e["event"] == "resume"]
    assert [event["update"] for event in resumed] == [6 + rank]  # the leader keeps what it has


def test_several_processes_need_one_directory(corpus: Corpus) -> None:
    several = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    words = ["pretrain", *MODEL, "--corpus", str(corpus.path), "--budget", "2updates"]
    done = crammed(*words, env={**several, "MASTER_PORT": "1"})
    assert done.returncode == 2
    assert "--out RUN_DIR" in done.stderr
