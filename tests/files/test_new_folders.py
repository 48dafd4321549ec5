"""Folders made where a mounted volume, a link or another process already is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.files.folders import behind_links, check_vacant, new_folder, publish
from crammed.files.writing import check_file, write_text


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, if this process may mount one."""
    place = tmp_path / "volume"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mounting, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("has no mount")
    if done.returncode:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that behaves as a mounted one."""
    place, replace, rmdir = tmp_path / "volume", os.replace, os.rmdir
    place.mkdir()

    def is_within(path: Path) -> bool:
        return Path(path).is_relative_to(place) and Path(path) != place

    def replacing(old: Path, new: Path) -> None:
        if place in (Path(old), Path(new)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if is_within(old) != is_within(new):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(old, new)

    def removing(path: Path, *, dir_fd: int | None = None) -> None:
        if Path(path) == place:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "rmdir", removing)
    return place


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An empty folder on the same disk."""
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


@pytest.fixture(params=["mounted", "simulated", "plain"])
def volume(request: pytest.FixtureRequest) -> Path:
    place: Path = request.getfixturevalue(request.param)
    return place


def _fill(folder: Path, text: str = "1") -> None:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x").write_text(text)
    for name in ("manifest.json", "rows.bin"):
        (folder / name).write_text(text)


def _content(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


WHOLE = ["deep", "deep/x", "manifest.json", "rows.bin"]


def test_a_new_folder_fills_a_volume(volume: Path) -> None:
    check_vacant(volume, "--to")
    with new_folder(volume) as aside:
        _fill(aside)
        assert _content(aside) == WHOLE
    assert _content(volume) == WHOLE
    with pytest.raises(InputError, match="exists already: choose another --to"):
        check_vacant(volume, "--to")


def test_what_is_published_fills_a_volume(volume: Path, tmp_path: Path) -> None:
    _fill(tmp_path / "work")
    publish(tmp_path / "work", volume)
    assert _content(volume) == WHOLE
    assert not (tmp_path / "work").exists()


def test_a_fresh_disk_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    check_vacant(tmp_path, "--out")
    with new_folder(tmp_path) as aside:
        _fill(aside)
    assert _content(tmp_path) == sorted([*WHOLE, "lost+found"])


@pytest.mark.parametrize("moves", range(4))
def test_a_volume_is_filled_completely_or_not_at_all(
    tmp_path: Path, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed after some of the moves; what completes the folder comes last."""
    left, replace, place = [moves], os.replace, tmp_path / "volume"
    place.mkdir()

    def dying(old: Path, new: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a kill cleans nothing up
        try:
            with new_folder(place) as aside:
                _fill(aside)
        except KeyboardInterrupt:
            assert moves < 3
    assert (place / "manifest.json").exists() == (moves == 3)
    if moves == 3:  # only the empty remainder is left
        with pytest.raises(InputError, match="exists already"):
            check_vacant(place, "--out")
        assert _content(place) == WHOLE
        return
    check_vacant(place, "--out")
    with new_folder(place) as aside:
        _fill(aside, "2")
    assert _content(place) == WHOLE
    assert (place / "deep" / "x").read_text() == "2"


def test_a_place_below_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory; choose another --to"):
        check_vacant(tmp_path / "file" / "deep" / "out", "--to")


def test_folders_above_one_that_failed_do_not_stay(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wrong"), new_folder(tmp_path / "deep" / "out"):
        raise InputError("wrong")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_that_was_named_stands_for_its_target(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    place = behind_links(tmp_path / "link")
    check_vacant(place, "--to")
    with new_folder(place) as aside:
        _fill(aside)
    assert (tmp_path / "link").is_symlink()
    assert _content(tmp_path / "target") == WHOLE


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_among_our_own_folders_is_replaced(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with new_folder(tmp_path / "link") as aside:
        _fill(aside)
    assert not (tmp_path / "link").is_symlink()
    assert _content(tmp_path / "link") == WHOLE
    assert not exists or not _content(tmp_path / "target")


def test_the_working_directory_can_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = behind_links(Path())
    check_vacant(place, "--out")
    with new_folder(place) as aside:
        _fill(aside)
    assert _content(Path.cwd()) == WHOLE
    with pytest.raises(InputError, match="exists already"):
        check_vacant(behind_links(Path("/")), "--out")


@pytest.mark.parametrize("exists", [False, True])
def test_two_that_make_one_folder_do_not_mix(tmp_path: Path, exists: bool) -> None:
    place = tmp_path / "made"
    if exists:
        place.mkdir()
    with new_folder(place) as aside:
        _fill(aside)
        with pytest.raises(InputError, match="is being made by another process: wait for it"):
            with new_folder(place) as _:
                pass
        assert _content(aside) == WHOLE
    assert _content(place) == WHOLE


@pytest.mark.parametrize("exists", [False, True])
def test_what_another_process_made_meanwhile_is_kept(tmp_path: Path, exists: bool) -> None:
    place = tmp_path / "made"
    if exists:
        place.mkdir()

    def make() -> None:
        with new_folder(place) as aside:
            _fill(aside, "ours")
            _fill(place, "theirs")

    with pytest.raises(InputError, match="was made by another process meanwhile"):
        make()
    assert _content(place) == WHOLE
    assert (place / "rows.bin").read_text() == "theirs"


def test_disks_that_cannot_sync_folders_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refusing)
    write_text(tmp_path / "new" / "x", "1")
    assert (tmp_path / "new" / "x").read_text() == "1"


def test_a_file_that_is_mounted_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "x").write_text("longer than before")
    monkeypatch.setattr(os, "replace", busy)
    write_text(tmp_path / "x", "1")
    assert (tmp_path / "x").read_text() == "1"


@pytest.mark.parametrize("name", ["", ".", "/", "..", "folder"])
def test_a_folder_is_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="it is a folder; choose another place"):
        check_file(Path(name))


@pytest.mark.parametrize("listing", ['["mine", "x"]', '{"mine": 1, "x": 1}', "5", "[" * 100_000])
def test_a_listing_that_somebody_planted_removes_nothing(tmp_path: Path, listing: str) -> None:
    aside = tmp_path / "volume" / ".unfinished"
    aside.mkdir(parents=True)
    (aside / "x").touch()
    (aside / ".moving.json").write_text(listing)
    (tmp_path / "volume" / "mine").write_text("precious")
    with pytest.raises(InputError, match="volume exists already: choose another --to"):
        check_vacant(tmp_path / "volume", "--to")
    assert (tmp_path / "volume" / "mine").read_text() == "precious"
