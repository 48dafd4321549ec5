"""Folders that appear complete or not at all, and stay after a power cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crammed.errors import InputError
from crammed.files.faults import disk_faults


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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears at `path` complete, or not at all.

    Yields a temporary folder beside it to write into; one left by a crash is removed first.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with disk_faults(path):
        shutil.rmtree(aside, ignore_errors=True)
        make_folder(path.parent)
        aside.mkdir()
        try:
            yield aside
            _move_into_place(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def sync_all(files: Iterable[Path]) -> None:
    """Wait until the content of all these files is on the disk."""
    for file in files:
        sync(file)


def publish(folder: Path, path: Path) -> None:
    """Move a finished folder to `path`, where it appears complete or not at all."""
    with disk_faults(path):
        make_folder(path.parent)
        if folder.stat().st_dev == path.parent.stat().st_dev:
            _move_into_place(folder, path)
            return
        with new_folder(path) as aside:
            shutil.copytree(folder, aside, dirs_exist_ok=True)
        shutil.rmtree(folder)


def _move_into_place(folder: Path, path: Path) -> None:
    """Rename a folder within its disk, once all of its content is on that disk."""
    for each in (*folder.rglob("*"), folder):  # a folder's own content is the names in it
        if each.is_file() or each.is_dir():
            sync(each)
    if path.exists():
        path.rmdir()  # only ever an empty folder
    folder.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
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
