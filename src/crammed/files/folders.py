"""Folders that appear complete or not at all, and stay after a power cut."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crammed.errors import InputError
from crammed.files.addresses import began_as_address
from crammed.files.faults import disk_faults
from crammed.files.regular import read_text


def expanded(name: str | Path) -> Path:
    """The path with the home folder in place of ``~``; ``~name`` stays if there is no such user."""
    return Path(os.path.expanduser(name))


def cache_folder() -> Path:
    """Where this user keeps what can be made again: CRAMMED_CACHE, or ``~/.cache/crammed``."""
    if named := os.environ.get("CRAMMED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")) / "crammed"


def make_folder(path: Path) -> None:
    """Make a folder and those above it, such that they survive a power cut."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def missing_folders(path: Path) -> list[Path]:
    """Which of `path` and the folders above it do not exist, innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


_ASIDE, _MOVING = ".unfinished", ".moving.json"
WORK = ".preparing"
"""Folder of intermediate results in an empty folder that somebody made for a corpus."""
_LAST = ("config.json", "manifest.json", "hashes.json")
"""What makes a folder count as complete; moved after everything else, in this order."""
LOST_AND_FOUND = "lost+found"
"""A folder at the top of many disks, which holds nothing of anybody's."""


def behind_links(path: Path) -> Path:
    """The folder that a name stands for which somebody typed: it may be a link, or end in dots.

    Links within our own folders are not followed; what is made in their place replaces them.
    """
    return path.resolve() if path.is_symlink() or path.name in ("", "..") else path


def check_vacant(path: Path, option: str) -> None:
    """Check that a folder can be made at `path`: that is missing or empty, as a mounted volume.

    Args:
        option: what the name was given with, such as ``--to``.

    Raises:
        InputError: it exists and holds something, cannot be written to, or is an address.
    """
    if began_as_address(path):
        raise InputError(
            f"{option} is an address, and results are written to this machine first: name a folder "
            "here; crammed data copy CORPUS_DIR ADDRESS copies a corpus there"
        )
    with disk_faults(path):
        if path.exists() and not (path.is_dir() and _is_vacant(path)):
            raise InputError(f"{path} exists already: choose another {option}")
    if not path.exists():
        check_above(path, option)
    elif not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written to: choose another {option}")


def check_above(path: Path, option: str) -> None:
    """Check that something can be made at `path`, where the folders above it may be missing.

    Args:
        option: what to choose another of: an option such as ``--to``, or ``place``.

    Raises:
        InputError: one of these is a file, or nobody may write there.
    """
    above = next(each for each in path.absolute().parents if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        fault = os.strerror(errno.EACCES if above.is_dir() else errno.ENOTDIR)
        raise InputError(f"cannot write {path}: {fault}; choose another {option}")


def _is_vacant(folder: Path) -> bool:
    """Whether a folder holds nothing except what a disk or a killed process of ours left there."""
    _undo_moves(folder)
    ours = {_ASIDE, WORK, LOST_AND_FOUND}
    return all(each.name in ours for each in folder.iterdir())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears at `path` complete, or not at all.

    Yields a temporary folder to write into, which is beside `path`, or inside if that exists and is
    empty; one left by a crash is removed first.

    Raises:
        InputError: another process is making the folder, or has made it meanwhile.
    """
    with disk_faults(path), _aside_of(path) as aside:
        yield aside
        _move_into_place(aside, path)


@contextmanager
def _aside_of(path: Path) -> Iterator[Path]:
    """An empty folder on the disk of `path`, which this process has locked; removed at the end."""
    made = missing_folders(path.parent)
    make_folder(path.parent)
    inside = path.is_dir() and not path.is_symlink()
    aside = path / _ASIDE if inside else path.with_name(f".{path.name}.tmp")
    if aside.is_symlink():  # planted
        aside.unlink()
    lock = _locked(aside, path)
    try:
        empty(aside)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)
        remove_if_empty(made)


def _locked(aside: Path, path: Path) -> int:
    """A descriptor of the folder `aside` that holds a lock on it; the folder is made if missing."""
    while True:
        with suppress(FileExistsError):
            aside.mkdir()
        try:
            lock = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # another process has just moved it into place
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise InputError(f"{path} is being made by another process: wait for it") from error
        except OSError:  # a file system without locks
            return lock
        if aside.exists() and os.path.samestat(aside.stat(), os.fstat(lock)):
            return lock
        os.close(lock)


def empty(folder: Path, kept: Collection[Path] = ()) -> None:
    """Remove what is in a folder except `kept`, as far as possible, but not the folder itself."""
    those = (each for each in folder.iterdir() if each not in kept)
    _remove(sorted(those, key=lambda each: each.name == ".lock"))  # it guards the others


def _remove(entries: Iterable[Path]) -> None:
    for each in entries:
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            with suppress(OSError):
                each.unlink()


def sync_all(files: Iterable[Path]) -> None:
    """Wait until the content of all these files is on the disk."""
    for file in files:
        sync(file)


def publish(folder: Path, path: Path) -> None:
    """Move a finished folder to `path`, where it appears complete or not at all."""
    with disk_faults(path):
        make_folder(path.parent)
        if not path.is_dir() or path.is_symlink():
            with _nearby():
                _move_into_place(folder, path)
                return
        with new_folder(path) as aside:
            with _nearby():
                for each in folder.iterdir():
                    each.replace(aside / each.name)
            shutil.copytree(folder, aside, dirs_exist_ok=True)  # what could not be moved
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _nearby() -> Iterator[None]:
    """Try to rename; go on if the new name turns out to be on another disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EBUSY):
            raise


def _move_into_place(folder: Path, path: Path) -> None:
    """Rename a folder within its disk, once all of its content is on that disk.

    If `path` is an empty folder, its entries are renamed one by one: it may be a mounted volume,
    which cannot be replaced, and what completes it comes last.
    """
    for each in (*folder.rglob("*"), folder):  # a folder's own content is the names in it
        if each.is_file() or each.is_dir():
            sync(each)
    if path.is_symlink():
        path.unlink()
    if folder.parent == path:
        _move_entries(folder, path)
        return
    try:
        folder.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(f"{path} was made by another process meanwhile: it is kept") from error
    sync(path.parent)


def _move_entries(aside: Path, path: Path) -> None:
    names = sorted(each.name for each in aside.iterdir())
    names.sort(key=lambda name: _LAST.index(name) if name in _LAST else -1)
    if taken := [name for name in names if (path / name).exists()]:
        raise InputError(f"{path / taken[0]} was made by another process meanwhile: it is kept")
    listing = {name: _number(aside / name) for name in names}
    (aside / _MOVING).write_text(json.dumps(listing), "utf-8")
    sync(aside / _MOVING)
    sync(aside)
    for name in names:
        if name in _LAST:
            sync(path)
        (aside / name).replace(path / name)
    sync(path)


def _undo_moves(path: Path) -> None:
    """Remove what a process that was killed in `_move_entries` has moved, unless it moved all.

    A listing that somebody else wrote, who cannot know numbers of files, removes nothing.
    """
    aside = path / _ASIDE
    listing = aside / _MOVING
    if aside.is_symlink() or not listing.is_file():
        return
    # Another process is at it, or nothing was moved yet, or the listing is not ours.
    with suppress(InputError, ValueError, AttributeError, RecursionError):
        lock = _locked(aside, path)
        try:
            listed = json.loads(read_text(listing)).items()
            numbers = {name: number for name, number in listed if _is_name(name)}
            there = {each.name for each in aside.iterdir()}
            if there.intersection(numbers):
                moved = {
                    path / name: number for name, number in numbers.items() if name not in there
                }
                _remove(each for each in moved if _number(each) == moved[each])
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(lock)


def _is_name(name: str) -> bool:
    return name == Path(name).name not in ("", "..")


def _number(path: Path) -> int | None:
    """The number of a file or folder on its disk, which it keeps when it is renamed."""
    return path.lstat().st_ino if os.path.lexists(path) else None


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some mounted disks cannot do folders
            raise
    finally:
        os.close(descriptor)


def inside(folder: Path, name: object, listing: str) -> Path:
    """The path of a file or folder that a listing in `folder` names.

    Args:
        listing: what messages call the file that lists the name.

    Raises:
        InputError: the name leads out of the folder, or is not a name.
    """
    if isinstance(name, str) and name and "\0" not in name:
        path = Path(name)
        if not path.is_absolute() and ".." not in path.parts:
            return folder / path
    raise InputError(f"{listing} names {name!r}, which leads out of its folder: is it damaged?")
