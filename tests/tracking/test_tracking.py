"""Services that draw a run's logs: what reaches them, and that none can hold training up."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.files.locks import FolderLock
from crammed.interface import training
from crammed.runs.logs import read_metrics
from crammed.terminal.progress import SILENT, Progress
from crammed.tracking import following, services
from crammed.tracking.following import check_tracker, tracked
from crammed.tracking.forward import Tail, forward
from support.command import wait_for
from support.text import documents, write_jsonl, write_rows
from support.training import events

CONFIG = Path(__file__).parents[1] / "fixtures" / "2026-11-21" / "finished" / "config.json"
POINTS = [{"update": n, "loss": 5.0 - n, "grad_norm": None, "u": n / 4} for n in (1, 2)]
HELDOUT = {"event": "heldout", "at": "now", "update": 2, "loss@0.15": 3.5}
FAKE = """
import json, time
def _note(what, *values):
    with open("{said}", "a") as file:
        file.write(json.dumps([what, *values], default=str) + "\\n")
def init(**options):
    {init}
    _note("init", options)
def log(values, step):
    _note("log", step, values)
def finish():
    _note("finish")
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for a process of low priority on a busy machine."""
    monkeypatch.setattr(following, "PATIENCE", 600.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that another process has logged a point of."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(CONFIG, folder)
    (folder / "env.json").write_text('{"started": "today"}')
    write_rows(folder / "metrics.jsonl", [{"update": 0, "loss": 9.0}])
    return folder


def follow(service: str, run: Path) -> str:
    """Log while a service follows; returns what is said."""
    said = io.StringIO()
    with tracked(service, run, Progress(said)):
        for name, records in (("metrics.jsonl", POINTS), ("events.jsonl", [HELDOUT])):
            with (run / name).open("a") as file:
                file.write('{"update": 1, "lo\n')  # as after a crash
                file.writelines(json.dumps(record) + "\n" for record in records)
    return said.getvalue()


def fake(folder: Path, library: str, monkeypatch: pytest.MonkeyPatch, init: str = "") -> Path:
    """A library of that name, and the file with what it is told."""
    said = folder / "told.jsonl"
    path = folder / "libraries"
    path.mkdir()
    (path / f"{library}.py").write_text(FAKE.format(said=said, init=init or "pass"))
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
    return said


def drawn(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars in TensorBoard's event files, read by TensorBoard."""
    library = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = library.EventAccumulator(str(folder)).Reload()
    tags = read.Tags()["tensors"] + read.Tags()["scalars"]
    return {tag: [(each.step, each.value) for each in read.Scalars(tag)] for tag in tags}


def test_tensorboard_reads_what_was_logged_from_now_on(run: Path) -> None:
    pytest.importorskip("tensorboard")
    said = follow("tensorboard", run)
    assert said.count("\n") == 1, said
    assert drawn(run / "tensorboard") == {
        "loss": [(1, 4.0), (2, 3.0)],
        "u": [(1, 0.25), (2, 0.5)],
        "heldout/loss@0.15": [(2, 3.5)],
    }


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_services_with_their_own_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    told = fake(tmp_path, library, monkeypatch)
    follow(library, run)
    (first, options), *logged, last = [json.loads(line) for line in told.read_text().splitlines()]
    assert (first, options["project"]) == ("init", "crammed")
    own = services._own(run)
    wanted = {"name": "run", "id": own} if library == "wandb" else {"name": f"run-{own[:6]}"}
    assert wanted.items() <= options.items()
    assert options["config"]["recipe"] == json.loads(CONFIG.read_text())["recipe"]
    assert "/" not in str([each["path"] for each in options["config"]["data"]["sources"]])
    assert logged[0] == ["log", 1, {"loss": 4.0, "u": 0.25}]
    assert [step for _, step, _ in logged] == [1, 2, 2]
    assert logged[-1] == ["log", 2, {"heldout/loss@0.15": 3.5}]
    assert last == ["finish"]


def test_a_run_stays_itself_when_it_is_moved_and_no_two_are_one(tmp_path: Path) -> None:
    """Those of a study may begin in the same second, and a run may begin anew at an old path."""
    found = []
    for place, began in (("a/x", 1), ("b/x", 1), ("a/y", 1), ("c/x", 2)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "env.json").write_text(f'{{"started": {began}}}')
        found.append(services._own(tmp_path / place))
    own, moved, beside, anew = found
    assert own == moved
    assert len({own, beside, anew}) == 3


def test_a_service_gets_no_step_back(run: Path) -> None:
    """W&B ignores it; what a slow service gets at once is in two files."""
    write_rows(run / "metrics.jsonl", [{"update": n, "loss": 1.0} for n in range(1, 11)])
    write_rows(run / "events.jsonl", [{**HELDOUT, "update": 5}])
    steps: list[int] = []

    class Slow:
        def log(self, update: int, values: object) -> None:
            steps.append(update)

        def finish(self) -> None:
            steps.append(0)

    with open(os.devnull) as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        forward(Slow(), [Tail(run / "metrics.jsonl", 0), Tail(run / "events.jsonl", 0)])
    assert steps == [1, 2, 3, 4, 5, 5, *range(6, 11), 0]


def test_a_run_with_the_links_of_wandb_is_opened_again(tmp_path: Path) -> None:
    (tmp_path / "run/wandb/offline").mkdir(parents=True)
    (tmp_path / "run/wandb/latest-run").symlink_to("offline")
    with FolderLock(tmp_path / "run"):
        pass
    (tmp_path / "run/export").mkdir()
    (tmp_path / "run/export/wandb").symlink_to(tmp_path)
    with pytest.raises(InputError, match="wandb is a link"):
        FolderLock(tmp_path / "run")


def test_a_service_that_fails_is_said_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "wandb", monkeypatch, "raise OSError('no route\\nto host')")
    said = follow("wandb", run)
    _, failed = said.splitlines()
    assert failed == "track  wandb failed, and the run goes on without it: no route to host"


def test_a_service_that_hangs_holds_nothing_up(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, said = tmp_path / "begun", io.StringIO()
    fake(tmp_path, "trackio", monkeypatch, f"open({str(begun)!r}, 'w'); time.sleep(1000)")
    monkeypatch.setattr(following, "PATIENCE", 0.2)
    with tracked("trackio", run, Progress(said)):
        wait_for(begun.exists)
        left = time.monotonic()
    assert time.monotonic() - left < 30.0
    assert said.getvalue().splitlines()[1:] == ["track  trackio did not take everything within 0 s"]


def test_a_signal_to_the_whole_job_does_not_end_a_service(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedulers send one to all processes, and training logs on until it has saved."""
    told, began, original = fake(tmp_path, "wandb", monkeypatch), list[Any](), subprocess.Popen

    def noted(*given: Any, **named: Any) -> Any:
        began.append(original(*given, **named))
        return began[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    with tracked("wandb", run, SILENT):
        wait_for(told.exists)
        began[0].terminate()
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(point) + "\n" for point in POINTS)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [line[0] for line in lines] == ["init", "log", "log", "finish"]


def test_a_library_that_is_missing_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "find_spec", lambda _: None)
    message = r"^compute.track=wandb needs wandb: pip install 'crammed\[wandb\]'$"
    with pytest.raises(InputError, match=message):
        check_tracker("wandb")
    with pytest.raises(InputError, match=message):
        training.run(None, ["compute.track=wandb"], data="text.jsonl", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_whole_run_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    words: list[Any] = [*TINY, "compute.track=tensorboard", "train.heldout_every=0.5"]
    done = training.run(None, words, data=text, budget="8updates", out=tmp_path / "run")
    found = drawn(done.folder / "tensorboard")
    points = read_metrics(done.folder)
    assert [update for update, _ in found["loss"]] == [point["update"] for point in points]
    measured = [event["update"] for event in events(done.folder, "heldout")]
    assert [update for update, _ in found["heldout/loss@0.15"]] == measured
    assert (measured[-1], len(measured)) == (8, 2)
