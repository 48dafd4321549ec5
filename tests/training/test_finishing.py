"""After training: one checkpoint is what final/, export/ and summary.json are made from."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from crammed.config import RunConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError, Interrupted, StoppedByPolicy
from crammed.export.huggingface import export
from crammed.files.hashes import sha256
from crammed.machine.device import Device
from crammed.model.trained import load_trained
from crammed.pretraining import train_and_export
from crammed.runs.directory import RunDir, read_config
from crammed.runs.listing import list_runs
from crammed.runs.logs import read_metrics
from crammed.runs.summary import Summary
from crammed.terminal.progress import SILENT
from crammed.training.checkpoint import Checkpoints
from crammed.training.loop import pretrain
from support.command import crammed, dying, python
from support.steps import same
from support.text import MODEL, tiny
from support.training import events


def finish(config: RunConfig, corpus: Corpus, out: Path, cpu: Device) -> Summary:
    with RunDir.open(out, config) as run:
        return train_and_export(run, corpus, cpu, SILENT)


def contents(run: Path) -> dict[str, Any]:
    """Everything that the last stage leaves, but for what each process measures of itself."""
    files = [*(run / "final").iterdir(), *(run / "export").iterdir()]
    summary = json.loads((run / "summary.json").read_text())
    del summary["peak_exaflop"]
    return {**{str(file.relative_to(run)): sha256(file) for file in files}, "summary": summary}


@pytest.mark.parametrize(
    "function", ["os:replace", pytest.param("shutil:rmtree", marks=pytest.mark.long)]
)
def test_killed_between_any_two_writes_the_last_stage_ends_in_the_same_files(
    tmp_path: Path, corpus: Corpus, cpu: Device, function: str
) -> None:
    model = [*MODEL, "compute.device=cpu", "compute.dtype=float32"]
    command = ["pretrain", *model, "--corpus", str(corpus.path), "--budget=3updates", "--json"]
    trained = tmp_path / "trained"
    killed = python(*dying("crammed.pretraining:trained_model"), *command, "--out", trained)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    config = read_config(trained)
    shutil.copytree(trained, tmp_path / "whole")
    finish(config, corpus, tmp_path / "whole", cpu)
    expected = contents(tmp_path / "whole")
    for call in itertools.count(1):
        run = tmp_path / f"run{call}"
        shutil.copytree(trained, run)
        killed = python(*dying(function, call), *command, "--out", run)
        if killed.returncode == 0:  # it makes no more such calls
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        finish(config, corpus, run, cpu)
        assert contents(run) == expected
        assert not (run / "checkpoints").exists()
        assert not list(run.rglob("*.tmp"))
    assert call > 6


def test_after_a_failed_export_training_does_not_go_on(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", budget={"limit": "1h"})
    run = tmp_path / "run"

    def failing(*_: object) -> None:
        raise InputError("the disk is full")

    with monkeypatch.context() as patched:  # most of the hour is left, as after a stall
        patched.setattr("crammed.pretraining.export", failing)
        updates = 0

        def stalled(self: Any) -> bool:
            nonlocal updates
            updates += 1
            return updates < 5

        patched.setattr("crammed.training.plan.Deadline.met", stalled)
        with pytest.raises(InputError, match="full"):
            finish(config, corpus, run, cpu)
    before = read_metrics(run)

    def further(*_: object) -> None:
        raise AssertionError("training goes on")

    monkeypatch.setattr("crammed.training.update.step.TrainStep.gradients", further)
    summary = finish(config, corpus, run, cpu)
    assert summary.updates == before[-1]["update"] == 4
    assert read_metrics(run) == before
    assert summary.tokens == 4 * 8 * 32
    again = export(load_trained(run), tmp_path / "again")  # export/ is of the model in final/
    assert sha256(again.path / "model.safetensors") == sha256(run / "export" / "model.safetensors")


def test_a_final_model_of_another_moment_is_replaced(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    """Older versions could leave one."""
    config = tiny("crammed", budget={"limit": "2updates"})
    finish(config, corpus, tmp_path / "other", cpu)
    more = tiny("crammed", budget={"limit": "4updates"})
    run = tmp_path / "run"
    with RunDir.open(run, more):
        shutil.copytree(tmp_path / "other" / "final", run / "final")
    finish(more, corpus, run, cpu)
    finish(more, corpus, tmp_path / "clean", cpu)
    for name in ("final", "export"):
        files = [folder / name / "model.safetensors" for folder in (run, tmp_path / "clean")]
        assert sha256(files[0]) == sha256(files[1])


def test_the_end_of_training_is_read_from_the_last_checkpoint(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", "train.checkpoint_seconds=1e-9", budget={"limit": "3updates"})
    peaks = iter([10**9, 10**8])
    monkeypatch.setattr("crammed.training.upkeep.peak_memory", lambda _: next(peaks))
    both = []
    for _ in range(2):
        with RunDir.open(tmp_path / "run", config) as run:
            both.append(pretrain(config, corpus, run, cpu, SILENT))
    first, second = both
    assert (first.work, first.u, first.accounts) == (second.work, second.u, second.accounts)
    assert first.charged_seconds == second.charged_seconds
    assert first.memory_bytes == second.memory_bytes == 10**9  # training's, not the second call's
    assert same(first.model.parameters(), second.model.parameters())
    assert not events(run.path, "resume")


def test_a_signal_while_the_end_is_written_ends_the_process(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Checkpoints.write

    def signalled(self: Checkpoints, *given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return original(self, *given)

    config = tiny("crammed", budget={"limit": "3updates"})
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "write", signalled)
        with pytest.raises(Interrupted, match="SIGTERM after 3 updates"):
            finish(config, corpus, tmp_path / "run", cpu)
    assert finish(config, corpus, tmp_path / "run", cpu).updates == 3


def test_a_run_that_its_rule_ended_is_over(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    rule = ("train.early_stop.after=0.5", "train.early_stop.loss=0.1", "train.log_seconds=1e-9")
    config = tiny("crammed", *rule, budget={"limit": "10updates"})
    run = tmp_path / "run"
    with pytest.raises(StoppedByPolicy, match="early stop") as first:
        finish(config, corpus, run, cpu)
    (listed,) = list_runs(run)
    assert listed.state == "failed"
    assert listed.problem == str(first.value)
    before = (run / "metrics.jsonl").read_bytes(), (run / "events.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(StoppedByPolicy, match="the run is over") as again:
            finish(config, corpus, run, cpu)
        assert str(first.value) in str(again.value)
        assert again.value.exit_code == 3
    assert before == ((run / "metrics.jsonl").read_bytes(), (run / "events.jsonl").read_bytes())


@pytest.mark.parametrize(("peak", "known"), [(1e18, True), (1.0, False), (None, False)])
def test_a_peak_that_a_run_passes_is_not_known(
    tmp_path: Path, corpus: Corpus, cpu: Device, peak: float | None, known: bool
) -> None:
    config = tiny(budget={"limit": "2updates"})
    summary = finish(config, corpus, tmp_path / "run", dataclasses.replace(cpu, peak=peak))
    assert (summary.peak_exaflop is not None) == known


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, corpus: Corpus
) -> None:
    often = ["train.checkpoint_seconds=1e-9", "--corpus", str(corpus.path), "--budget=1300tok"]
    command = ["pretrain", *MODEL, *often, "--json", "--out"]
    assert crammed(*command, tmp_path / "whole").returncode == 0
    run = tmp_path / "run"
    killed = python(*dying("crammed.training.update.step:TrainStep.apply", 4), *command, run)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    weights = run / "checkpoints" / "step-00000003" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 4
    weights.write_bytes(content)
    done = crammed(*command, run)
    assert done.returncode == 0, done.stderr
    words = "step-00000003 is damaged (model.safetensors differs from its hash): resuming from"
    assert f"{words} {run}/checkpoints/step-00000002" in done.stderr
    assert sha256(run / "final" / "model.safetensors") == sha256(
        tmp_path / "whole" / "final" / "model.safetensors"
    )
    assert json.loads(done.stdout)["updates"] == 5


def test_a_finished_run_whose_model_is_damaged_says_so(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    config, out = tiny("demo", "model.layers=1", budget={"limit": "2updates"}), tmp_path / "run"
    summary = finish(config, corpus, out, cpu)
    assert finish(config, corpus, out, cpu).heldout == summary.heldout
    with (out / "final" / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"final is damaged .* with another --out"):
        finish(config, corpus, out, cpu)
