"""Signals, closed pipes and crashes leave a checkpoint from which training goes on."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.data.corpus import Corpus
from crammed.errors import InputError, Interrupted
from crammed.files.hashes import write_hashes
from crammed.machine.device import Device
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT, Progress
from crammed.training.loop import pretrain
from crammed.training.signals import noted_signals
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.planned import Update
from crammed.training.update.step import TrainStep
from support.steps import same
from support.text import FakeClock, tiny
from support.training import train


@pytest.fixture
def stopping_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an update of that number send a signal to this process."""
    original = TrainStep.gradients

    def install(number: int, which: signal.Signals) -> None:
        def stop(self: TrainStep, rows: torch.Tensor, update: Update) -> torch.Tensor:
            if update.number == number:
                signal.raise_signal(which)
            return original(self, rows, update)

        monkeypatch.setattr(TrainStep, "gradients", stop)

    return install


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_checkpoint_that_goes_on_exactly(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    stopping_at: Any,
    which: signal.Signals,
) -> None:
    config = tiny("bert-original", budget={"limit": "7updates"})
    whole = train(config, corpus, tmp_path / "whole", cpu)
    stopping_at(3, which)
    said = r"after 3 updates; everything is saved in \S+/run, and the same command continues"
    with pytest.raises(Interrupted, match=f"{which.name} {said} from there$") as caught:
        train(config, corpus, tmp_path / "run", cpu)
    assert caught.value.exit_code == 75
    stopping_at(-1, which)
    resumed = train(config, corpus, tmp_path / "run", cpu)
    assert resumed.work == whole.work
    assert same(whole.model.parameters(), resumed.model.parameters())


class Reported(BaseException):
    """What the handler of a command line raises."""


def report(*_: Any) -> None:
    raise Reported


@pytest.mark.parametrize(
    ("usual", "raised"), [(report, Reported), (signal.SIG_IGN, KeyboardInterrupt)]
)
def test_a_second_ctrl_c_is_reported_as_the_first_would_have_been(usual: Any, raised: Any) -> None:
    before = signal.signal(signal.SIGINT, usual)
    try:
        with noted_signals() as noted:
            signal.raise_signal(signal.SIGINT)
            assert noted == ["SIGINT"]
            with pytest.raises(raised):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_c_code_handles_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_c(number: int) -> Any:
        return None if number == signal.SIGTERM else handler(number)

    handler = signal.getsignal
    before = [handler(number) for number in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.setattr(signal, "getsignal", of_c)
    with noted_signals():
        assert handler(signal.SIGTERM) == before[0]
        assert handler(signal.SIGINT) != before[1]


@pytest.mark.parametrize("last", [0, 3])
def test_a_signal_leaves_an_update_between_its_microbatches(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    config = tiny("bert-original", "batch.ramp=0.0", budget={"limit": "7updates"})
    small = dataclasses.replace(cpu, microbatch_rows=2)
    whole = train(config, corpus, tmp_path / "whole", small)
    original, calls, clock = MaskedTokens.loss, 0, FakeClock(1e-3)

    def stop(self: MaskedTokens, *given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 4 * last + 2:  # the second of four microbatches
            clock.now += 100.0
            signal.raise_signal(signal.SIGINT)
        return original(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(MaskedTokens, "loss", stop)
        with pytest.raises(Interrupted, match=f"SIGINT after {last} updates"):
            train(config, corpus, tmp_path / "run", small, clock=clock)
    assert calls == 4 * last + 2
    resumed = train(config, corpus, tmp_path / "run", small)
    assert resumed.work == whole.work
    assert sum(resumed.accounts[name] for name in ("step", "lost")) > 100.0  # nothing is free
    assert same(whole.model.parameters(), resumed.model.parameters())


def test_a_signal_is_answered_before_the_next_shape_is_compiled(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def compiled(loss: Any, **_: Any) -> Any:
        def first_interrupted(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                signal.raise_signal(signal.SIGTERM)
            return loss(*given)

        return first_interrupted

    monkeypatch.setattr(torch, "compile", compiled)
    config = tiny("crammed", "masking.final_rate=0.125", budget={"limit": "7updates"})
    device = dataclasses.replace(cpu, compile=True)
    with pytest.raises(Interrupted, match="SIGTERM after 0 updates; everything is saved"):
        train(config, corpus, tmp_path / "run", device)
    assert calls == 1
    assert train(config, corpus, tmp_path / "run", device).work.updates == 7


def test_a_closed_pipe_stops_a_run_like_a_signal(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.terminal.progress.SECONDS_BETWEEN_LINES", 0.0)
    reading, writing = os.pipe()
    os.close(reading)
    words = ("train.log_seconds=1e-9", "model.embedding_start=random")
    config = tiny("crammed", *words, budget={"limit": "7updates"})
    with open(writing, "w") as pipe, Progress(pipe) as progress:
        with RunDir.open(tmp_path / "run", config) as run:
            with pytest.raises(Interrupted, match="SIGHUP after 1 update; everything is saved"):
                pretrain(config, corpus, run, cpu, progress)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001"]


def test_time_lost_in_a_crash_is_charged(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    config = tiny("crammed", "train.log_seconds=0.5", budget={"limit": "100s"})
    out = tmp_path / "run"
    with RunDir.open(out, config) as run:
        run.heartbeat(40.0)
    trained = train(config, corpus, out, cpu, clock=FakeClock(0.1))
    assert trained.accounts["lost"] == 40.0
    assert trained.charged_seconds == pytest.approx(100.0, abs=5.0)
    spent = sum(trained.accounts[a] for a in ("step", "data_wait", "log", "compile"))
    assert spent == pytest.approx(60.0, abs=5.0)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (80.0, "1m 20s of its budget were lost when the previous process ended; to start over, "),
        (40.0, "40s of its budget were lost when the previous process ended\n"),
        (0.5, None),
    ],
)
def test_a_resume_says_how_much_of_the_budget_is_lost(
    tmp_path: Path, corpus: Corpus, cpu: Device, lost: float, said: str | None
) -> None:
    config, printed = tiny("crammed", budget={"limit": "100s"}), io.StringIO()
    with RunDir.open(tmp_path / "run", config) as run:
        run.heartbeat(lost)
    train(config, corpus, tmp_path / "run", cpu, Progress(printed), FakeClock(0.1))
    if said is None:
        assert "resumes after" not in printed.getvalue()
    else:
        assert f"pretraining  resumes after 0 updates; {said}" in printed.getvalue()


def test_a_checkpoint_of_another_corpus_is_refused(
    tmp_path: Path, corpus: Corpus, cpu: Device, stopping_at: Any
) -> None:
    config = tiny("crammed", budget={"limit": "7updates"})
    stopping_at(3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(config, corpus, tmp_path / "run", cpu)
    generation = next((tmp_path / "run" / "checkpoints").iterdir())
    state = generation / "state.json"
    state.write_text(state.read_text().replace(corpus.sha256, "0" * 64))
    write_hashes(generation)
    with pytest.raises(InputError, match="another corpus"):
        train(config, corpus, tmp_path / "run", cpu)


def test_a_checkpoint_removes_what_a_killed_process_left_of_another(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    left = tmp_path / "run" / "checkpoints" / ".step-00000001.tmp"
    config = tiny("crammed", budget={"limit": "2updates"})
    with RunDir.open(tmp_path / "run", config) as run:
        left.mkdir(parents=True)
        (left / "model.safetensors").write_bytes(b"the first half")
        pretrain(config, corpus, run, cpu, SILENT)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000002"]


def test_a_generation_that_cannot_be_deleted_ends_nothing(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = shutil.rmtree

    def busy(path: Path, *given: Any, **named: Any) -> None:
        if Path(path).name.startswith("step-"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        original(path, *given, **named)

    monkeypatch.setattr(shutil, "rmtree", busy)
    config = tiny("crammed", "train.checkpoint_seconds=1e-9", budget={"limit": "4updates"})
    assert train(config, corpus, tmp_path / "run", cpu).work.updates == 4
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) > 2
