"""Links, pipes and devices that somebody planted in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crammed.data.corpus import Corpus
from crammed.data.preparing.read.search import find_files
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.folder import default_folder
from crammed.files.folders import new_folder
from crammed.files.hashes import HASHES
from crammed.files.locks import FolderLock, is_locked
from crammed.files.writing import (
    last_record,
    read_json,
    save_array,
    write_array,
    write_gzip,
    write_text,
)
from crammed.model.trained import load_trained
from crammed.rules.recipe import ask
from crammed.runs.directory import RunDir, read_config
from crammed.runs.logs import read_lines
from crammed.runs.resuming import default_out
from crammed.tasks.task import load_suite
from crammed.terminal.progress import SILENT
from support.evaluation import Ask
from support.text import tiny

ARRAY = np.arange(3)
WRITERS: dict[str, Callable[[Path], None]] = {
    "x.npz": lambda path: save_arrays(path, {"a": ARRAY}, {}),
    "x.npy": lambda path: save_array(path, ARRAY),
    "x.bin": lambda path: write_array(path, ARRAY),
    "x.gz": lambda path: write_gzip(path, [b"new"]),
    "report.html": lambda path: write_text(path, "new"),
}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that nobody may write to, outside of the folders that are given to the program."""
    file = tmp_path / "home" / ".bashrc"
    file.parent.mkdir()
    file.write_text("mine")
    return file


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link(tmp_path: Path, precious: Path, name: str) -> None:
    for planted in (name, f".{name}.tmp", f".{name}.{os.getpid()}.tmp"):
        (tmp_path / planted).symlink_to(precious)
    WRITERS[name](tmp_path / name)
    assert precious.read_text() == "mine"
    assert (tmp_path / name).stat().st_size
    assert not (tmp_path / name).is_symlink()


def test_a_new_folder_is_not_made_through_a_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / ".made.tmp").symlink_to(precious.parent)
    with new_folder(tmp_path / "made") as aside:
        (aside / ".bashrc").write_text("theirs")
    assert precious.read_text() == "mine"
    assert (tmp_path / "made" / ".bashrc").read_text() == "theirs"


PLANTED = (".lock", "events.jsonl", "evaluation", "final/.x.npz.tmp", "checkpoints/step-00000001")


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("to", ["home/.bashrc", "home", "home/missing"])
def test_a_run_with_a_link_in_it_is_refused(
    tmp_path: Path, precious: Path, name: str, to: str
) -> None:
    run = tmp_path / "run"
    RunDir.open(run, config := tiny("crammed")).__exit__()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / to)
    with pytest.raises(InputError, match=f"run/{name} is a link, which might lead anywhere"):
        RunDir.open(run, config).event("stage")
    assert [file.name for file in precious.parent.iterdir()] == [".bashrc"]
    assert precious.read_text() == "mine"


def test_links_are_refused_where_a_log_is_appended_to(tmp_path: Path, precious: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny("crammed")) as run:
        (run.path / "events.jsonl").symlink_to(precious)
        with pytest.raises(InputError, match=r"events\.jsonl is a link"):
            run.event("stage")
        (run.path / "events.jsonl").unlink()
        os.mkfifo(run.path / "events.jsonl")
        with pytest.raises(InputError, match=r"events\.jsonl is not an ordinary file"):
            run.event("stage")
    assert precious.read_text() == "mine"


def test_a_log_is_not_appended_to_under_its_other_name(tmp_path: Path, precious: Path) -> None:
    precious.write_text('{"event": "stage"}\n')
    with RunDir.open(tmp_path / "run", tiny("crammed")) as run:
        (run.path / "events.jsonl").hardlink_to(precious)
        run.event("checkpoint")
    assert precious.read_text() == '{"event": "stage"}\n'
    events = [each["event"] for each in read_lines(run.path / "events.jsonl")]
    assert events == ["stage", "checkpoint"]
    assert not list(run.path.glob(".events*"))


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "other disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "other disk")
    with RunDir.open(tmp_path / "run", tiny("crammed")) as run:
        run.event("stage")
    assert (tmp_path / "other disk" / "events.jsonl").exists()


def test_a_pipe_in_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert not is_locked(tmp_path)
    with pytest.raises(InputError, match=r"\.lock is not an ordinary file"):
        FolderLock(tmp_path)


def test_scores_are_not_written_through_a_link(
    precious: Path, model: Path, ask: Ask, blimp: Path
) -> None:
    (model / "evaluation").mkdir()
    (model / "evaluation" / ".lock").symlink_to(precious.parent / "missing")
    asked = ask(suite="blimp", data=str(blimp), into=model / "evaluation", jobs=None)
    with pytest.raises(InputError, match=r"evaluation/\.lock is a link"):
        evaluate(asked, SILENT)
    assert [file.name for file in precious.parent.iterdir()] == [".bashrc"]
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", [".made.preparing", "made/.preparing"])
def test_the_intermediate_results_of_preparing_are_not_a_link(
    tmp_path: Path, precious: Path, make_corpus: Callable[..., Corpus], name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(precious.parent)
    with pytest.raises(InputError, match=r"\.?preparing is a link"):
        make_corpus(["text"] * 100)
    assert [file.name for file in precious.parent.iterdir()] == [".bashrc"]


READERS: dict[str, Callable[[Path], object]] = {
    "state.json": lambda path: find_files(str(path.parent)),
    "x.json": read_json,
    "x.jsonl": lambda path: list(read_lines(path)),
    "log.jsonl": last_record,
    "config.json": lambda path: read_config(path.parent),
    "manifest.json": lambda path: Corpus(path.parent),
    "x.npz": load_arrays,
    "suite.yaml": lambda path: load_suite(str(path)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("device", [True, False])
def test_pipes_and_devices_are_not_read(tmp_path: Path, name: str, device: bool) -> None:
    if device:
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} is not an ordinary file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_model_with_a_pipe_does_not_hang(model: Path, name: str) -> None:
    final = model / "final"
    (final / HASHES).unlink()  # as older versions wrote it
    text = (final / "config.json").read_text()
    (final / "config.json").write_text(text.replace('"schema": 2', '"schema": 1'))
    (final / name).unlink()
    os.mkfifo(final / name)
    with pytest.raises(InputError, match=name):
        load_trained(model)


@pytest.mark.parametrize("name", ["model.safetensors", "generation_config.json", "vocab.txt"])
def test_a_model_of_transformers_with_a_pipe_does_not_hang(
    tmp_path: Path, model_folders: dict[str, Path], name: str
) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} is not an ordinary file"):
        BackboneSpec(str(folder)).load()


def test_the_folder_of_an_evaluation_is_no_link(model: Path, precious: Path) -> None:
    (model / "evaluation").symlink_to(precious.parent)
    with pytest.raises(InputError, match="evaluation is a link"):
        default_folder(str(model), None)


def test_folders_that_nobody_named_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precious: Path
) -> None:
    """Among our own in a working directory that somebody else may have made."""
    monkeypatch.chdir(tmp_path)
    asked = ask("crammed", [], {"budget": {"limit": "1h"}})
    first = default_out(asked, "my.txt", "summary.json")
    for folder in (first, default_folder("org/name", None)):
        folder.parent.mkdir()
        folder.symlink_to(precious.parent / "missing")
    assert default_out(asked, "my.txt", "summary.json") != first
    with pytest.raises(InputError, match="evaluations/org-name is a link"):
        default_folder("org/name", None)
    RunDir.open(tmp_path / "elsewhere", asked.config).__exit__()
    first.unlink()
    first.symlink_to(tmp_path / "elsewhere")  # an unfinished run of the same
    assert default_out(asked, "my.txt", "summary.json") != first
