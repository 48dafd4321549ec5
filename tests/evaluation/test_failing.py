"""Evaluations that fail, in part or as a whole: refused, diverged, killed, interrupted."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from crammed.config import ComputeConfig, Protocol
from crammed.errors import InputError, TaskFailed
from crammed.evaluation import suite
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning import jobs
from crammed.terminal.progress import SILENT, Progress
from support.command import PATIENCE, started, wait_for
from support.evaluation import Ask, tasks_of
from support.tasks import write_task
from support.text import write_rows


def test_a_failing_task_is_shown_and_the_others_finish(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "stsb", rows=40, label=1.0)  # constant: nothing to learn
    write_task(tmp_path, "cola", rows=40, label=7)
    write_task(tmp_path, "mrpc", rows=4)  # fewer than a batch
    write_task(tmp_path, "rte", rows=40)
    result = evaluate(ask(seeds=1, untrained=False), SILENT)
    tasks = tasks_of(result)
    assert "nothing to learn" in tasks["stsb"]["failed"]
    assert "line 1" in tasks["cola"]["failed"]
    assert "4 training rows are fewer than one batch of 8" in tasks["mrpc"]["failed"]
    assert len(tasks["rte"]["seeds"]) == 1
    means = result["suites"]["glue"]["means"]
    assert all("stsb" not in mean["of"] for mean in means)
    suite.raise_for_failed_tasks(result["suites"], {"rte"})  # all that was asked for
    with pytest.raises(TaskFailed, match=r"no score: cola: .*; mrpc: .*; stsb: "):
        suite.raise_for_failed_tasks(result["suites"])
    # Once its data is repaired, it gets its score.
    shutil.rmtree(tmp_path / "cola")
    write_task(tmp_path, "cola", rows=40)
    assert "seeds" in tasks_of(evaluate(ask(seeds=1, untrained=False), SILENT))["cola"]
    # Without its data, it is no task that failed any more, once all tasks of the data are scored.
    for name in ("stsb", "mrpc"):
        shutil.rmtree(tmp_path / name)
    some = evaluate(ask(seeds=1, untrained=False, tasks=("rte",)), SILENT)
    assert list(tasks_of(some)) == ["cola", "mrpc", "stsb", "rte"]
    result = evaluate(ask(seeds=1, untrained=False), SILENT)
    assert list(tasks_of(result)) == ["cola", "rte"]
    suite.raise_for_failed_tasks(result["suites"])


def test_a_diverged_model_has_no_score(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "cola", rows=40)
    (tmp_path / "wild.yaml").write_text("{seeds: 1, epochs: 2, batch: 8, lr: 1e30, max_length: 32}")
    result = evaluate(ask(protocol=str(tmp_path / "wild.yaml"), untrained=False), SILENT)
    assert "diverged" in tasks_of(result)["cola"]["failed"]


@pytest.mark.parametrize("size", [1, 10])
def test_a_task_on_which_the_untrained_model_alone_fails_is_scored_without_it(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also where both train side by side, as they do on a GPU."""
    write_task(tmp_path, "cola", rows=40)
    usual, groups = jobs._model, jobs._in_groups

    def diverging(backbone: Backbone, job: jobs.FinetuneJob, protocol: Protocol) -> nn.Module:
        model = usual(backbone, job, protocol)
        if not job.trained:
            nn.init.constant_(next(model.parameters()), np.nan)
        return model

    said = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_model", diverging)
        patch.setattr(jobs, "_in_groups", lambda all, setup, _, say: groups(all, setup, size, say))
        alone = tasks_of(evaluate(ask(), Progress(said)))["cola"]
    assert "untrained" not in alone
    why = "which failed: fine-tuning diverged: its outputs are not finite; lower lr ("
    assert said.getvalue().count(f"note  cola: scored without the untrained model, {why}") == 1
    both = tasks_of(evaluate(ask(), SILENT))["cola"]
    assert len(both["untrained"]["seeds"]) == 2
    assert both["seeds"] == alone["seeds"]


def test_wrong_requests_are_refused_before_anything_is_made(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "cola", rows=40)
    (tmp_path / "mine").write_text("a file")
    own = tmp_path / "own.yaml"
    own.write_text("tasks: {cola: {text: sentence, metric: accuracy}}")
    trained: dict[str, Any] = {"jobs": None, "untrained": False}
    half: dict[str, Any] = {"jobs": None, "compute": ComputeConfig(dtype="bfloat16")}
    for values, message in (
        ({"suite": "gleu"}, "no suite 'gleu': did you mean glue"),
        ({"tasks": ("colla",)}, "no task 'colla': did you mean cola"),
        ({"data": str(tmp_path / "none")}, "is not a folder of tasks"),
        ({"data": str(tmp_path / "model")}, "holds no task"),
        ({"protocol": "crammin"}, "no protocol 'crammin': did you mean cramming"),
        ({"submission": tmp_path / "s.zip", "suite": "docs"}, "no leaderboard"),
        (
            {"submission": tmp_path / "s.zip", "suite": str(own)},
            r"no task of \S+own.yaml has `test`",
        ),
        ({"untrained": False, "twins": tmp_path / "twins"}, "leave out --untrained-in"),
        ({"twins": tmp_path / "mine"}, "mine is not a folder: name another with --untrained-in"),
        ({"model": str(tmp_path / "cola")}, "neither a finished run"),
        ({"suite": "heldout", "jobs": None}, "is a folder: name a file, such as heldout.jsonl.gz"),
        ({"suite": "blimp", "seeds": 2}, "--seeds does nothing for blimp: leave it out"),
        ({"suite": "blimp", "tasks": ("npi",)}, "--tasks does nothing for blimp: leave it out"),
        ({"suite": "blimp", "jobs": 1}, "--jobs does nothing for blimp: leave it out"),
        ({"suite": "blimp", **trained}, "--no-untrained does nothing for blimp: leave it out"),
        ({"suite": "heldout", **trained}, "--no-untrained does nothing for heldout: leave it out"),
        ({"suite": "blimp", **half}, "--dtype does nothing for blimp: leave it out"),
        ({"suite": "heldout", **half}, "--dtype does nothing for heldout: leave it out"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(ask(**values), SILENT)
    request = ask(suite="blimp", data=str(tmp_path / "none.jsonl"), jobs=None)
    deep = dataclasses.replace(request, into=tmp_path / "deep" / "scores")
    with pytest.raises(InputError, match="no BLiMP data at"):
        evaluate(deep, SILENT)
    assert not (tmp_path / "scores").exists()
    assert not (tmp_path / "deep").exists()


def test_faults_of_ones_own_task_are_found_before_anything_is_made(
    tmp_path: Path, ask: Ask
) -> None:
    """Each is said once; the built-in suites finish what they can."""
    suite, data = tmp_path / "mine.yaml", tmp_path / "data"
    for task, label in (("short", 0), ("column", 0), ("label", 7), ("good", 0)):
        rows = [{"text": f"row {n}", "label": n % 2} for n in range(4 if task == "short" else 40)]
        write_rows(data / task / "train.jsonl", rows)
        rows[2]["label"] = label
        write_rows(data / task / "validation.jsonl", rows)
    task = "{text: text, metric: accuracy}"
    suite.write_text(
        f"tasks: {{short: {task}, column: {{text: txt, metric: accuracy}}, label: {task}, "
        f"good: {task}}}"
    )
    request = ask(suite=str(suite), data=str(data), twins=tmp_path / "twins")
    with pytest.raises(InputError) as refused:
        evaluate(request, SILENT)
    first, *lines = str(refused.value).splitlines()
    mend = f"; change the data, or {suite}"
    assert first == "3 faults:"
    assert [line.strip().partition(":")[0] for line in lines] == [
        *("task short", "task column", "task label")
    ]
    assert [line.endswith(mend) for line in lines] == [False, True, True]
    assert "4 training rows are fewer than one batch of 8: add rows, or set a" in lines[0]
    assert "no column 'txt' (it has: text, label); did you mean text?" in lines[1]
    assert "validation.jsonl, line 3: label 7 is not one of 0, 1" in lines[2]
    with pytest.raises(InputError, match=r"^task label: \S+, line 3: label 7 is not one of 0, 1"):
        evaluate(dataclasses.replace(request, tasks=("label",)), SILENT)
    assert not (tmp_path / "scores").exists()
    assert not (tmp_path / "twins").exists()
    good = dataclasses.replace(request, tasks=("good",), twins=None, untrained=False, seeds=1)
    found = evaluate(good, SILENT)
    assert len(found["suites"]["mine"]["tasks"]["good"]["seeds"]) == 1


def test_a_task_without_its_training_split_is_refused_or_named(tmp_path: Path, ask: Ask) -> None:
    rows = [{"text": f"row {n}", "label": n % 2} for n in range(16)]
    for task, train in (("one", "train"), ("two", "training")):
        for split in (train, "validation"):
            write_rows(tmp_path / "data" / task / f"{split}.jsonl", rows)
    task = "{text: text, metric: accuracy}"
    (tmp_path / "mine.yaml").write_text(f"tasks: {{one: {task}, two: {task}}}")
    own = {"suite": str(tmp_path / "mine.yaml"), "data": str(tmp_path / "data")}
    with pytest.raises(InputError, match=r"^task two: \S+two has no train split, .*training.jsonl"):
        evaluate(ask(**own), SILENT)
    assert not (tmp_path / "scores").exists()
    found = evaluate(ask(**own, tasks=("one",), seeds=1, untrained=False), SILENT)
    assert list(found["suites"]["mine"]["tasks"]) == ["one"]
    for task in ("cola", "rte"):
        write_task(tmp_path, task, rows=40)
    file, said = tmp_path / "rte" / "train.jsonl.gz", io.StringIO()
    file.rename(file.with_name("training.jsonl.gz"))
    found = evaluate(ask(seeds=1, untrained=False), Progress(said))
    assert list(tasks_of(found)) == ["cola"]
    assert f"note  task rte is left out: {tmp_path}/rte has no train split, " in said.getvalue()


def test_an_evaluation_that_is_killed_goes_on(tmp_path: Path, ask: Ask, model: Path) -> None:
    write_task(tmp_path, "cola", rows=64)
    write_task(tmp_path, "sst2", rows=64)
    command = ["evaluate", str(model), "--data", str(tmp_path), "--into", str(tmp_path / "scores")]
    command += ["--protocol", str(tmp_path / "quick.yaml"), "--jobs", "2", "--device", "cpu"]
    with started("-m", "crammed", *command) as process:
        wait_for(lambda: list((tmp_path / "scores").rglob("trained-*.npz")), process)
    killed = {f: f.stat().st_mtime_ns for f in (tmp_path / "scores").rglob("*trained-*.npz")}
    tasks = tasks_of(evaluate(ask(), SILENT))
    assert [len(entry["seeds"]) for entry in tasks.values()] == [2, 2]
    assert all(file.stat().st_mtime_ns == at for file, at in killed.items())


def test_an_interrupted_evaluation_stops_at_once(tmp_path: Path, model: Path) -> None:
    write_task(tmp_path, "cola", rows=96)
    (tmp_path / "endless.yaml").write_text("{seeds: 2, epochs: 100000, batch: 8, max_length: 32}")
    often = (
        "import crammed.terminal.progress; crammed.terminal.progress.SECONDS_BETWEEN_LINES = 0.0"
    )
    code = f"{often}; from crammed.cli.app import main; main()"
    command = ["evaluate", str(model), "--data", str(tmp_path), "--into", str(tmp_path / "scores")]
    command += ["--protocol", str(tmp_path / "endless.yaml"), "--jobs", "2", "--device", "cpu"]
    said = tmp_path / "said.txt"
    with started("-c", code, *command, errors=said) as process:
        wait_for(lambda: re.search(r"^fine-tuning +\d+ %", said.read_text(), re.M), process)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    assert process.returncode == 75, said.read_text()
    assert "interrupted; what is finished is kept" in said.read_text()
