"""What is finished is kept and used again, and nothing else stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.preparing.read import part
from crammed.data.preparing.workfolder import remove_left_overs
from crammed.errors import InputError
from crammed.files import scratch
from crammed.files.scratch import scratch_folder
from crammed.pipeline import _corpus_of as corpus_of
from crammed.runs.directory import RunDir
from crammed.terminal.progress import SILENT
from support.corpora import prepared, stopping
from support.reading import Cleaning, read_source, write_files
from support.text import documents, tiny, write_jsonl

KEPT = "; what is finished is kept, and the corrected command continues from there"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files of text, of which two make a shard, but none is read with another."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 50_000)
    return write_files(tmp_path / "texts", 4, 100)


def _prepare(folder: Path, out: str = "out", work: Path | None = None, *words: str) -> Corpus:
    return prepared(folder.parent / out, folder, "compute.workers=1", *words, work=work)


@pytest.fixture
def cleaning(monkeypatch: pytest.MonkeyPatch) -> Cleaning:
    return Cleaning(monkeypatch)


def test_a_bad_line_in_the_last_file_costs_that_file_alone(
    folder: Path, cleaning: Cleaning
) -> None:
    last = folder / "3.jsonl"
    good = last.read_text()
    last.write_text(good + "not json\n")
    with pytest.raises(InputError) as caught:
        _prepare(folder)
    assert f"{folder.name}/{last.name}, line 101: not valid JSON" in str(caught.value)
    assert str(caught.value).endswith(KEPT)
    assert len(cleaning.names) == 3
    last.write_text(good)
    (folder / "1.jsonl").write_text("".join((folder / "1.jsonl").read_text().splitlines(True)[1:]))
    made = _prepare(folder)
    assert len(cleaning.names) == 5, "the file that changed, and the last one"
    assert made.sha256 == _prepare(folder, "afresh").sha256
    assert {path.name for path in folder.parent.iterdir()} == {"texts", "out", "afresh"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EIO, "Input/output error", "/mnt/x"), "cannot read or write /mnt/x: Input"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out while preparing"),
        (MemoryError(), "memory ran out while preparing: raise its limit"),
        (pa.ArrowException("Failed to launch worker thread"), "memory ran out while preparing"),
        (RuntimeError("can't start new thread"), "memory ran out while preparing"),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_costs_little(
    folder: Path, cleaning: Cleaning, error: BaseException, words: str
) -> None:
    cleaning.errors[3] = error
    with pytest.raises(InputError, match=words) as caught:
        _prepare(folder)
    assert str(caught.value).endswith(KEPT)
    assert "\n" not in str(caught.value)
    _prepare(folder)
    assert len(cleaning.names) == 5
    assert {path.name for path in folder.parent.iterdir()} == {"texts", "out"}


@pytest.mark.parametrize("work", [None, "work"])
def test_the_folder_whose_disk_is_full_is_named(
    folder: Path, cleaning: Cleaning, work: str | None
) -> None:
    cleaning.errors[1] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(InputError) as caught:
        _prepare(folder, work=folder.parent / work if work else None)
    assert str(caught.value).endswith(f"another place than {folder.parent / (work or 'out')}")


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (None, "were damaged and have been removed: repeat the command"),
        ("work", "are damaged: remove them and begin again"),
    ],
)
def test_damaged_results_that_nobody_keeps_are_removed(
    folder: Path, cleaning: Cleaning, work: str | None, words: str
) -> None:
    cleaning.errors[2] = pa.ArrowInvalid("no table")
    place = folder.parent / (work or ".out.preparing")
    with pytest.raises(InputError, match=f"^the intermediate results in {place} {words}$"):
        _prepare(folder, work=place if work else None)
    assert place.exists() == (work is not None)


@pytest.mark.parametrize(("name", "times"), [("a.md", 2), ("a.html", 2), ("a.jsonl", 1)])
def test_text_is_extracted_again_by_another_version(
    tmp_path: Path, cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch, name: str, times: int
) -> None:
    file = write_jsonl(tmp_path / name, documents(10))
    for _ in range(2):
        read_source(file, tmp_path / "work")
    assert len(cleaning.names) == 1
    monkeypatch.setattr(part, "version_of", lambda library: "99")
    read_source(file, tmp_path / "work")
    assert len(cleaning.names) == times


def test_steps_whose_result_is_damaged_are_repeated(folder: Path, cleaning: Cleaning) -> None:
    cleaning.errors[4] = InputError("stopped")
    with pytest.raises(InputError, match="stopped"):
        _prepare(folder)
    first, second, _ = sorted(folder.parent.glob(".out.preparing/parts/*/read.json"))
    first.write_text('{"blocks": ')
    second.with_name("00000.clean.json").write_text("")
    _prepare(folder)
    assert len(cleaning.names) == 4 + 3


def test_a_kill_at_the_very_end_leaves_nothing_for_long(folder: Path) -> None:
    with stopping("publish", after=True):
        _prepare(folder)
    beside = folder.parent / ".out.preparing"
    assert beside.exists()
    with (beside / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_left_overs(folder.parent / "out")
        assert beside.exists(), "another process is still at it"
    with pytest.raises(InputError, match="out exists already"):
        _prepare(folder)
    assert not beside.exists()
    assert not list(Corpus(folder.parent / "out").damaged())


def test_what_was_published_is_made_anew_for_another_place(folder: Path) -> None:
    work = folder.parent / "work"
    with stopping("publish", after=True):
        _prepare(folder, work=work)
    again = _prepare(folder, "again", work)
    assert again.sha256 == Corpus(folder.parent / "out").sha256
    assert not list(work.glob("made-*"))


def _stopped(folder: Path) -> Path:
    """Prepare up to the moment at which the corpus moves into place; where it lies."""
    with stopping("publish"):
        _prepare(folder)
    (made,) = folder.parent.glob(".out.preparing/made-*")
    return made


def test_what_was_about_to_be_published_is_not_made_again(folder: Path) -> None:
    made = _stopped(folder)
    manifest = made / "corpus" / "manifest.json"
    inode = manifest.stat().st_ino
    corpus = _prepare(folder)
    assert (corpus.path / "manifest.json").stat().st_ino == inode
    assert not list(corpus.damaged())
    assert not list(folder.parent.glob(".*"))


def test_what_was_about_to_be_published_is_compared_with_its_hashes(folder: Path) -> None:
    heldout = _stopped(folder) / "corpus" / "heldout.jsonl.gz"
    heldout.write_bytes(bytes(heldout.stat().st_size))
    assert not list(_prepare(folder).damaged())


@pytest.mark.parametrize("kept", ["manifest.json", ".manifest.json.tmp", ".tokenizer.json.tmp"])
def test_a_corpus_lists_nothing_that_a_kill_left(folder: Path, kept: str) -> None:
    made = _stopped(folder)
    (made / "publishing").unlink()
    (made / "corpus" / "manifest.json").rename(made / "corpus" / kept)
    corpus = _prepare(folder)
    assert kept not in corpus.manifest["files"]
    assert not list(corpus.damaged())
    assert not list(corpus.path.glob(".*"))


def test_folders_for_a_moment_do_not_outlive_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, alive, other = (tmp_path / f"{scratch._PREFIX}{n}" for n in ("dead", "alive", "link"))
    for each in (dead, alive):
        each.mkdir()
        (each / "large").touch()
    other.symlink_to(alive)
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with scratch_folder() as mine:
        (mine / "file").touch()
        with scratch_folder():
            assert set(tmp_path.iterdir()) >= {mine, alive}
        assert not dead.exists()
    os.close(lock)
    assert set(tmp_path.iterdir()) == {alive, other}
    with scratch_folder():
        pass
    assert set(tmp_path.iterdir()) == {other}


def test_a_folder_that_another_process_removes_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make = tempfile.mkdtemp
    made: list[str] = []

    def unlucky(**words: Any) -> str:
        made.append(make(**words))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", unlucky)
    with scratch_folder() as mine:
        assert str(mine) == made[1]


def test_the_next_call_of_a_run_removes_what_a_kill_left(folder: Path) -> None:
    config = tiny("crammed", "compute.workers=1", data={"sources": [str(folder)]})
    with RunDir.open(folder.parent / "run", config) as run:
        made = corpus_of(run, SILENT, None, None)
        beside = run.path / ".corpus.preparing"
        (beside / "parts").mkdir(parents=True)
        assert corpus_of(run, SILENT, None, None).sha256 == made.sha256
        assert not beside.exists()
