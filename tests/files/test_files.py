from __future__ import annotations

import errno
import fcntl
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.files.faults import disk_faults, failing
from crammed.files.folders import expanded, new_folder
from crammed.files.locks import FolderLock
from crammed.files.writing import (
    read_json,
    save_array,
    write_array,
    write_gzip,
    write_json,
    write_text,
)


def test_a_file_in_the_way_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    (tmp_path / "folder").mkdir()
    for place in ("results/x.json", "results/new/x.json", "folder"):
        with pytest.raises(InputError, match=f"cannot write .*{place}: .*; choose another place"):
            write_text(tmp_path / place, "a")


def test_a_file_in_the_way_of_something_else_is_named(tmp_path: Path) -> None:
    """As that of a library's cache, which it makes while a folder is written."""
    cache = tmp_path / "cache"
    cache.write_text("")
    with pytest.raises(InputError, match=f"cannot write {cache}: File exists; it is in the way of"):
        with disk_faults(tmp_path / "runs" / "mine"):
            cache.mkdir()


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.EACCES, "Permission denied; its permissions forbid it: change them with chmod, or"),
        (errno.ENAMETOOLONG, "File name too long; choose a shorter name"),
        (errno.EIO, "Input/output error; check the disk, then repeat the same command"),
    ],
)
def test_what_to_do_depends_on_what_the_machine_refused(number: int, mend: str) -> None:
    for error in (OSError(number, os.strerror(number), "x"), OSError()):
        assert f" x: {mend}" in failing(error, Path("x"), number)
    assert f" x: {mend}" in failing(OSError(number, os.strerror(number), "x"))


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    for path in (tmp_path / "full", Path("/dev/full")):
        with pytest.raises(InputError, match="full is not an ordinary file: choose another one"):
            write_text(path, "a")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("content", [b"{", b"[1]", b"", b"\xff", b"[" * 100_000, b'{"score": NaN}'])
def test_damaged_json_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json is damaged: it .*; restore it from a copy$"):
        read_json(tmp_path / "x.json")


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with FolderLock(folder):
        with pytest.raises(InputError, match=r"here is in use by another process: wait for it"):
            FolderLock(folder)
        with pytest.raises(InputError, match=r"corpus is in use"):
            FolderLock(folder, tmp_path / "corpus")
        FolderLock(folder, file="other").release()
    FolderLock(folder).release()


def test_a_look_at_a_lock_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = os.open(tmp_path / ".lock", os.O_CREAT | os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)  # as `is_locked` does for a moment
    monkeypatch.setattr(time, "sleep", lambda seconds: os.close(looking))
    FolderLock(tmp_path).release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from crammed.files.locks import FolderLock\n"
    )
    script += "lock = FolderLock(Path(sys.argv[1])); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 9
    FolderLock(tmp_path).release()


def test_a_gzip_file_depends_on_its_content_alone(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_gzip(tmp_path / name, iter([b"one", b"two"]))
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"onetwo"
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What reached the disk and what got its name, in order: ``("sync" or "name", inode)``."""
    calls: list[tuple[str, int]] = []
    fsync, replace, mkdir = os.fsync, os.replace, os.mkdir

    def noting_fsync(descriptor: int) -> None:
        calls.append(("sync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def noting_replace(old: Path, new: Path) -> None:
        calls.append(("name", os.stat(old).st_ino))
        replace(old, new)

    def noting_mkdir(path: Path, *given: int) -> None:
        mkdir(path, *given)
        calls.append(("name", os.stat(path).st_ino))

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "mkdir", noting_mkdir)
    return calls


def number(path: Path) -> int:
    return path.stat().st_ino


def test_a_file_is_on_the_disk_before_its_name_and_then_its_name(
    tmp_path: Path, done: list[tuple[str, int]]
) -> None:
    file = tmp_path / "new" / "deep" / "x.json"
    write_json(file, {"a": 1})
    new, deep = number(tmp_path / "new"), number(file.parent)
    assert done == [
        *(("name", new), ("sync", number(tmp_path)), ("name", deep), ("sync", new)),
        *(("sync", number(file)), ("name", number(file)), ("sync", deep)),
    ]


def test_a_folder_is_on_the_disk_with_all_names_in_it_before_it_appears(
    tmp_path: Path, done: list[tuple[str, int]]
) -> None:
    with new_folder(tmp_path / "made") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "x").write_text("1")
        (folder / "y").write_text("2")
        done.clear()
    made = tmp_path / "made"
    inside = {number(path) for path in (made, *made.rglob("*"))}
    assert set(done[:4]) == {("sync", each) for each in inside}
    assert done[4:] == [("name", number(made)), ("sync", number(tmp_path))]


def test_an_array_is_read_as_it_was_however_it_lies_in_memory(tmp_path: Path) -> None:
    table = np.arange(6).reshape(2, 3)
    for array in (table, np.asfortranarray(table), table[:, ::2], table.T):
        save_array(tmp_path / "x.npy", array)
        assert np.load(tmp_path / "x.npy").tolist() == array.tolist()
        write_array(tmp_path / "x.bin", array)
        assert (tmp_path / "x.bin").read_bytes() == array.tobytes()


def test_a_tilde_that_names_no_user_is_part_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/texts") == tmp_path / "texts"
    for name in ("~$report.txt", "~no-such-user/x", "plain"):
        assert expanded(name) == Path(name)
