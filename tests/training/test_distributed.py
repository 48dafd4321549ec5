"""Two processes train what one would, and neither waits for the dead."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from crammed.data.corpus import Corpus
from crammed.machine.device import Device
from crammed.runs.directory import RunDir, read_choice
from crammed.runs.logs import read_lines, read_metrics
from crammed.terminal.progress import Progress
from crammed.training.distributed import Group, note_processes
from support.command import PATIENCE, crammed, dying, prepared, started
from support.text import MODEL, tiny
from support.training import events

CRAMMED = ["-m", "crammed"]
PORTS = range(20_000, 32_000)
"""Below those that the system hands out, so that nobody else gets one before the group listens."""
_GROUPS = itertools.count()


def free_port() -> int:
    """A port that no other group of this process has had, nor any of a neighbouring process."""
    for _ in PORTS:
        port = PORTS[(512 * os.getpid() + next(_GROUPS)) % len(PORTS)]
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise OSError("all ports are in use")


def test_a_group_of_gpus_has_the_peak_of_all(cpu: Device) -> None:
    gpu = dataclasses.replace(cpu, torch=torch.device("cuda"), peak=1e15, peak_source="table")
    assert Group(0, 2).whole(gpu).mfu_peak == 2e15
    assert Group(0, 2).whole(cpu) == cpu  # whose cores the processes share
    unknown = dataclasses.replace(gpu, peak=None)
    assert Group(0, 2).whole(unknown).peak is None


@contextlib.contextmanager
def group(
    corpus: Corpus,
    out: Path,
    commands: Sequence[list[str]],
    *words: str,
    last: Sequence[str] = (),
    model: Sequence[str] = MODEL,
) -> Iterator[list[subprocess.Popen[str]]]:
    """The command as ``torchrun`` starts it, once for each of `commands`.

    Args:
        last: words that the last process alone gets.
        model: words that all get first.
    """
    port = free_port()
    always = ("--json", f"--corpus={corpus.path}", f"--out={out}")
    size = str(len(commands))
    several = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with contextlib.ExitStack() as opened:
        members = []
        for rank, command in enumerate(commands):
            own = last if rank == len(commands) - 1 else ()
            given = {word.partition("=")[0]: word for word in (*model, *always, *words, *own)}
            env = {**several, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            member = started(*command, "pretrain", "crammed", *given.values(), env=env)
            members.append(opened.enter_context(member))
        yield members


def ended(
    corpus: Corpus, out: Path, commands: Sequence[list[str]], *words: str, **more: Any
) -> tuple[list[int], list[str]]:
    """Exit codes and errors of a `group`."""
    with group(corpus, out, commands, *words, **more) as members:
        errors = [member.communicate(timeout=PATIENCE)[1] for member in members]
    return [member.returncode for member in members], errors


def train(corpus: Corpus, out: Path, processes: int, *words: str) -> None:
    """Run the group to its end, which must be a good one."""
    codes, errors = ended(corpus, out, [CRAMMED] * processes, *words)
    assert codes == [0] * processes, errors


def final(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-2)])
def test_two_processes_train_what_one_does(
    tmp_path: Path, corpus: Corpus, dtype: str, tolerance: float
) -> None:
    """Gradients are sums in another order, so they differ by a few units of rounding, which are
    2**-24 in float32 and 2**-11 in float16, and steps of SGD differ by as much. Those of Adam and
    Muon need not: they make the small parts of a gradient, which may be all rounding, large.
    """
    # Seven rows an update: the processes have different shares.
    words = ["optim.name=sgd", "optim.lr=0.01", "optim.clip=null", "batch.rows=7"]
    words += [f"compute.dtype={dtype}", "train.attention=document", "train.log_seconds=0.001"]
    # The budget would last for ever: the length of the text ends the run after twelve updates.
    words += ["--budget=1000h", f"budget.most_epochs={12.5 * 7 / corpus.rows}"]
    words += ["model.attention_start=random", "model.embedding_std=null"]
    if dtype == "float32":  # what the leader alone does to the weights at the end
        words += ["train.average=0.5", "model.layers=2", "model.value_embeddings=false"]
        words += ["train.grow_at=[0.97]"]
    words += ["train.lengthen_at=[0.3]"]
    for name, count in (("one", 1), ("two", 2)):
        train(corpus, tmp_path / name, count, *words)
    if dtype == "float32":
        train(corpus, tmp_path / "two", 2, *words)  # a finished run is shown by both
    one, two = (final(tmp_path / name) for name in ("one", "two"))
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= tolerance * weight.norm(), name
    assert [read_metrics(tmp_path / name)[-1]["update"] for name in ("one", "two")] == [12, 12]
    losses = [[p["loss"] for p in read_metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


def test_several_processes_go_back_together(tmp_path: Path, corpus: Corpus) -> None:
    # Biases of keys have hardly a gradient, and Adam makes large steps of its rounding. Where the
    # processor has 16 bits, they would be chosen, and round more.
    rates = (
        "model.attention_start=random",
        "model.qkv_bias=false",
        "optim.name=adamw",
        "optim.lr=1e18",
        "compute.dtype=float32",
        "train.divergence.then=lower",
        "train.divergence.factor=1e-20",
    )
    for name, count in (("one", 1), ("two", 2)):
        train(corpus, tmp_path / name, count, *rates, "--budget=12updates")
        assert [event["update"] for event in events(tmp_path / name, "back")] == [0]
    one, two = (final(tmp_path / name) for name in ("one", "two"))
    for name, weight in one.items():
        assert (weight - two[name]).norm() <= 1e-4 * weight.norm() + 1e-4, name


@pytest.mark.parametrize(
    ("option", "computes"),
    [
        ("model.embedding_start=cooccurrence", "begin_with_neighbours"),
        ("train.grad_init.updates=2", "begin_with_scales"),
    ],
)
def test_all_begin_with_the_leader_s_weights(
    tmp_path: Path, corpus: Corpus, option: str, computes: str
) -> None:
    """Which the others do not compute: on another machine they might differ in a bit."""
    words = (option, "optim.lr=1e-30", "--budget=3updates")
    train(corpus, tmp_path / "one", 1, *words)
    unable = prepared(f"import crammed.training.start as s; s.{computes} = None")
    codes, errors = ended(corpus, tmp_path / "two", [CRAMMED, unable], *words)
    assert codes == [0, 0], errors
    one, two = (final(tmp_path / name)["encoder.tokens.weight"] for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=0.0, atol=1e-7)


MEASURED = """
import crammed.planning.settling as settling
from crammed.planning.speed import Measured
def measured(config, device):
    speed = {speed}
    assert speed, "measured by a process that does not lead"
    return Measured(speed, False)
settling.training_speed = measured
"""


def test_one_process_measures_for_all(tmp_path: Path, corpus: Corpus) -> None:
    model = [word for word in MODEL if not word.startswith("batch.rows")]
    commands = [prepared(MEASURED.format(speed=speed)) for speed in (1e9, None)]
    codes, errors = ended(corpus, tmp_path / "run", commands, "--budget=1s", model=model)
    assert codes == [0, 0], errors
    choice = read_choice(tmp_path / "run")
    assert choice is not None
    assert choice.follows == ("batch.rows", "optim.matrix_lr")
    assert choice.flops_per_second == 1e9


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_dies_the_other_ends_and_both_go_on(
    tmp_path: Path, corpus: Corpus, rank: int
) -> None:
    out = tmp_path / "run"
    words = ["train.checkpoint_seconds=1e-9", "--budget=12updates"]
    commands = [CRAMMED, CRAMMED]
    commands[rank] = dying("crammed.training.update.step:TrainStep.apply", call=7)
    codes, errors = ended(corpus, out, commands, *words)
    assert codes[rank] == -signal.SIGKILL, errors[rank]
    assert codes[1 - rank] == 1, errors[1 - rank]
    assert "another process of this run ended" in errors[1 - rank]
    train(corpus, out, 2, *words)
    resumed = [event["update"] for event in events(out, "resume")]
    assert resumed == [6]  # whose weights were compared


def test_the_threads_of_a_connection_cannot_abort_the_end(tmp_path: Path, corpus: Corpus) -> None:
    """Those of one that has done its work may still wait when the others have ended."""
    aborting = prepared("import atexit, os; atexit.register(os.abort)")
    with group(corpus, tmp_path / "run", [aborting] * 2, "--budget=1updates") as members:
        ends = [member.communicate(timeout=PATIENCE) for member in members]
    assert [member.returncode for member in members] == [0, 0], ends
    assert json.loads(ends[0][0].splitlines()[-1])  # nothing that was printed is lost


OTHER_START = "import crammed.training.update.build as b; b.key = lambda *_: 7"
OTHER_WEIGHTS = """
import crammed.training.update.step as step
apply = step.TrainStep.apply
def apply_wrongly(self, factor):
    norm = apply(self, factor)
    self.parameters[0].data.view(-1)[0] += 1e-3
    return norm
step.TrainStep.apply = apply_wrongly
"""


@pytest.mark.parametrize(
    ("first", "last", "named"),
    [
        ("", ["--seed=7"], "seed"),
        ("", ["optim.lr=5e-3", "batch.rows=9"], "optim, batch"),
        ("", ["loss.name=focal"], "loss"),
        ("", ["--out=/nowhere/else"], "the run directory that it sees"),
        (OTHER_START, [], "the weights that it"),
        (OTHER_WEIGHTS, [], "its weights"),
    ],
)
def test_processes_that_differ_all_end_with_one_line(
    tmp_path: Path, corpus: Corpus, first: str, last: list[str], named: str
) -> None:
    out = tmp_path / "run"
    commands = [CRAMMED, prepared(first)]
    codes, errors = ended(corpus, out, commands, "--budget=3updates", last=last)
    assert codes == [2, 2], errors
    for error in errors:
        lines = [line for line in error.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, error
        assert f"process 1 differs from process 0 in {named}" in lines[0]
    assert out.exists() == (named == "its weights")  # in which case the checkpoints are kept


# Only updates must come that fast: before the first, a busy machine may take its time.
IMPATIENT = """
from crammed.training.watchdog import Watchdog
watch = Watchdog._watch
Watchdog._watch = lambda self, patience: watch(self, 5.0)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs_is_not_waited_for_for_ever(
    tmp_path: Path, corpus: Corpus, rank: int
) -> None:
    commands = [prepared(IMPATIENT), prepared(IMPATIENT)]
    commands[rank] = dying("crammed.training.update.step:TrainStep.apply", call=3, by="SIGSTOP")
    words = ("train.log_seconds=1e-9", "--budget=12updates")
    with group(corpus, tmp_path / "run", commands, *words) as members:
        _, error = members[1 - rank].communicate(timeout=PATIENCE)
        assert members[1 - rank].returncode == 1, error
        assert "no progress for 5s: another process of this run hangs" in error
    assert read_metrics(tmp_path / "run")[-1]["update"] >= 2


def test_another_number_of_processes_is_said(tmp_path: Path) -> None:
    said = io.StringIO()
    with RunDir.open(tmp_path / "run", tiny()) as run, Progress(said) as progress:
        note_processes(run, None, progress, resumed=False)
        note_processes(run, None, progress, resumed=True)
        assert not said.getvalue()
        note_processes(run, Group(0, 2), progress, resumed=True)
        note_processes(run, Group(0, 2), progress, resumed=True)
    assert said.getvalue().count("\n") == 1
    assert said.getvalue().startswith("processes  2 instead of 1")
    counts = [e["count"] for e in read_lines(run.path / "events.jsonl")]
    assert counts == [1, 2]


def test_several_processes_need_one_directory(corpus: Corpus) -> None:
    several = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    words = ["pretrain", *MODEL, "--corpus", str(corpus.path), "--budget", "2updates"]
    done = crammed(*words, env={**several, "MASTER_PORT": "1"})
    assert done.returncode == 2
    assert "--out RUN_DIR" in done.stderr
