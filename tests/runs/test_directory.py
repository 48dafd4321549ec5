from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import new_folder
from crammed.files.writing import write_chunks, write_json, write_text
from crammed.rules.choosing import Asked
from crammed.runs.directory import RunDir, differences, read_config
from crammed.runs.environment import environment
from crammed.runs.logs import read_metrics
from crammed.runs.resuming import as_begun, default_out
from crammed.runs.summary import Summary
from support.study import SUMMARY
from support.text import tiny

TWO_SOURCES = "data.sources=[{path: a.txt, max_characters: 300}, {path: b.txt, weight: 2}]"


def test_configuration_and_environment_are_saved_first(tmp_path: Path) -> None:
    config = tiny()
    with RunDir.open(tmp_path / "run", config):
        assert read_config(tmp_path / "run") == config
        env = json.loads((tmp_path / "run" / "env.json").read_text())
    assert env["packages"]["torch"]


def test_a_model_for_transformers_is_not_read_as_a_run(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "modernbert", "hidden_size": 64})
    with pytest.raises(InputError, match="is a model for transformers, not a run: name another"):
        read_config(tmp_path)


def test_a_run_that_ended_before_it_was_configured_begins_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in (".lock", "env.json", ".config.json.tmp", ".env.json.123.tmp"):
        (run / name).write_text("{")
    with RunDir.open(run, tiny()):
        assert json.loads((run / "env.json").read_text())["packages"]["torch"]
    for name in (".heartbeat.json.tmp", ".heartbeat.json.123.tmp"):
        (run / name).write_text("{")
    with RunDir.open(run, tiny()):
        assert sorted(file.name for file in run.iterdir()) == [".lock", "config.json", "env.json"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".hidden").touch()
    with pytest.raises(InputError, match="not a run"):
        RunDir.open(tmp_path / "other", tiny())


def test_a_copy_without_history_takes_its_commit_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CRAMMED_COMMIT", "0123456789ab")
    assert environment()["commit"] == "0123456789ab"
    monkeypatch.delenv("CRAMMED_COMMIT")
    monkeypatch.setattr("crammed.__file__", "/nowhere/src/crammed/__init__.py")
    assert environment()["commit"] is None


def test_a_run_goes_on_with_the_kernels_that_it_began_with(tmp_path: Path) -> None:
    begun = tiny("crammed", "compute.kernels=compiler")
    with RunDir.open(tmp_path / "run", begun):
        pass
    assert as_begun(tmp_path / "run", Asked(tiny("crammed"))).config == begun


def test_a_folder_of_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="not a run"):
        RunDir.open(tmp_path, tiny())
    with pytest.raises(InputError, match="is a file"):
        RunDir.open(tmp_path / "thesis.tex", tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_that_did_not_begin_leaves_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, text: str) -> None:
        raise InputError("the disk is full")

    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    for place in ("runs/a/one", "mine", "shared/two"):
        with RunDir.open(tmp_path / place, tiny()) as run:
            if place == "shared/two":  # another run began beside it
                (tmp_path / "shared" / "three").mkdir()
            run.discard_if_new()
        with monkeypatch.context() as patched:
            patched.setattr("crammed.runs.directory.write_json", fails)
            with pytest.raises(InputError, match="full"):
                RunDir.open(tmp_path / place, tiny())
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["mine", "shared", "shared/three"]


def test_a_run_that_could_not_be_opened_is_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a new one nor one whose configuration changes where it may."""
    for config in (tiny(), tiny("crammed", "train.divergence.then=skip")):
        with monkeypatch.context() as patch:
            stopped = Mock(side_effect=KeyboardInterrupt)
            patch.setattr("crammed.runs.directory.write_json", stopped)
            with pytest.raises(KeyboardInterrupt):
                RunDir.open(tmp_path / "run", config)
        with RunDir.open(tmp_path / "run", config):
            pass


def test_a_corpus_outlives_a_run_that_did_not_begin(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()) as run:
        (run.path / "corpus").mkdir()
        run.discard_if_new()
        assert not run.path.exists()  # half a corpus is not worth keeping
    with RunDir.open(tmp_path / "run", tiny()) as run:
        (run.path / "corpus").mkdir()
        write_json(run.path / "corpus" / "manifest.json", {})
        run.discard_if_new()
    other = tiny("crammed", "seed=1")
    with RunDir.open(tmp_path / "run", other) as run:
        assert read_config(run.path) == other
    with pytest.raises(InputError, match=r"data\.cls"):
        RunDir.open(tmp_path / "run", tiny("crammed", "data.cls=true"))
    with RunDir.open(tmp_path / "run", other) as run:
        run.metrics({"update": 1})
    with pytest.raises(InputError, match="seed: 1 there, 0 here"):
        RunDir.open(tmp_path / "run", tiny())


def test_work_that_preparing_kept_outlives_a_run_and_suits_any_other(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()) as run:
        (run.path / ".corpus.preparing").mkdir()
        run.discard_if_new()
    other = tiny("crammed", "data.unreadable=skip")
    with RunDir.open(tmp_path / "run", other) as run:
        assert read_config(run.path) == other
        run.metrics({"update": 1})
    with pytest.raises(InputError, match=r"data\.unreadable: skip there, stop here"):
        RunDir.open(tmp_path / "run", tiny())


def test_only_a_directory_of_its_own_without_training_is_discarded(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "old", tiny()):
        pass
    with RunDir.open(tmp_path / "old", tiny()) as run:
        run.discard_if_new()
    assert (tmp_path / "old").exists()
    with RunDir.open(tmp_path / "trained", tiny()) as run:
        run.metrics({"update": 1})
        run.discard_if_new()
    assert (tmp_path / "trained").exists()


def test_metrics_survive_a_line_cut_short_and_a_resume(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()) as run:
        for update in (1, 2, 3):
            run.metrics({"update": update, "try": 1})
        with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
            file.write('{"update": 4, "tr')
        for update in (3, 4):
            run.metrics({"update": update, "try": 2})
    found = [(record["update"], record["try"]) for record in read_metrics(tmp_path / "run")]
    assert found == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_default_names_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = default_out(Asked(tiny("demo")), "my.jsonl.zst", "summary.json")
    assert first.name.startswith("demo-my-")
    first.mkdir(parents=True)
    assert default_out(Asked(tiny("demo")), "my.jsonl.zst", "summary.json") != first
    assert "*" not in default_out(Asked(tiny("demo")), "*.txt", "summary.json").name


def test_a_run_that_was_stopped_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny("demo")
    path = default_out(Asked(config), "my.txt", "summary.json")
    with RunDir.open(path, config):
        pass
    assert default_out(Asked(config), "my.txt", "summary.json") == path
    assert default_out(Asked(tiny("demo", "compute.threads=3")), "my.txt", "summary.json") == path
    assert default_out(Asked(tiny("demo", "seed=1")), "my.txt", "summary.json") != path
    assert default_out(Asked(config), "other.txt", "summary.json") != path
    (path / "summary.json").touch()
    assert default_out(Asked(config), "my.txt", "summary.json") != path
    assert default_out(Asked(config), "my.txt", "report.html") == path


def test_files_are_replaced_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "a.txt", "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("crammed.files.writing.os.fsync", full)
    with pytest.raises(InputError, match="disk is full"):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_two_processes_may_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile() -> Iterator[bytes]:
        yield b"half "
        with monkeypatch.context() as other:
            other.setattr("os.getpid", lambda: 1)
            write_text(tmp_path / "a.txt", "other")
        yield b"and half"

    write_chunks(tmp_path / "a.txt", meanwhile())
    assert (tmp_path / "a.txt").read_text() == "half and half"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_crash_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".made.tmp").mkdir()
    (tmp_path / ".made.tmp" / "junk").write_text("x")
    with new_folder(tmp_path / "made") as folder:
        assert not list(folder.iterdir())


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(InputError, match="cannot write"):
        RunDir.open(tmp_path / "run", tiny())


def test_weights_that_do_not_fit_on_the_disk_are_reported_in_one_line() -> None:
    library_says = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(InputError, match="disk is full"), disk_faults(Path("out")):
        raise SafetensorError(library_says)
    library_says = "Error while serializing: I/O error: Input/output error (os error 5)"
    with pytest.raises(InputError, match=r"write out: Input/output error; check the disk"):
        with disk_faults(Path("out")):
            raise SafetensorError(library_says)
    with pytest.raises(SafetensorError), disk_faults(Path("out")):
        raise SafetensorError("InvalidHeader")
    copied = [("run/model", "out/model", "[Errno 28] No space left on device: 'out/model'")]
    with pytest.raises(InputError, match="disk is full"), disk_faults(Path("out")):
        raise shutil.Error(copied)


def test_a_finished_run_has_its_logs_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss would otherwise leave a finished run without the log points of its report."""
    done: list[str] = []
    monkeypatch.setattr("crammed.files.folders.sync", lambda file: done.append(file.name))
    monkeypatch.setattr("crammed.runs.directory.write_json", lambda file, _: done.append(file.name))
    with RunDir.open(tmp_path / "run", tiny()) as run:
        run.metrics({"update": 1})
        run.event("stage")
        done.clear()
        run.finish(Summary.model_validate(SUMMARY))
    assert done == ["metrics.jsonl", "events.jsonl", "summary.json"]


def test_of_sources_that_differ_only_what_is_set_is_shown() -> None:
    one, both = (tiny("crammed", words) for words in ("data.sources=[a.txt]", TWO_SOURCES))
    shown = "path a.txt, max_characters 300 and path b.txt, weight 2.0 here"
    assert differences(one, both) == [f"data.sources: path a.txt there, {shown}"]
