"""Simulates what a power loss leaves of a world: what was synced, and part of the rest.

The process has been killed. Of the files that it wrote, those that were synced after their last
change are whole; of each other file nothing, a part, zeros or all has reached the disk. Operations
on folders (new files, new names, removals) reach the disk in order; of those after the last one
that was certainly synced, a drawn number at the end is undone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from campaign.journal import Operation

Identity = tuple[int, int]
"""Inode and time of change, which a file keeps while nobody writes to it."""
_OF_FOLDERS = ("create", "rename", "mkdir", "remove", "rmdir")


def files_of(world: Path) -> dict[Path, Identity]:
    files = [file for file in sorted(world.rglob("*")) if file.is_file()]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def lose_power(
    world: Path,
    journal: Sequence[Operation],
    before: dict[Path, Identity],
    kept: Path,
    draw: random.Random,
) -> None:
    """Remove what had not reached the disk.

    That is what was neither synced by the processes of `journal`, nor there `before`. `kept` holds
    the files that they removed or replaced.
    """
    synced = {(each.about["inode"], each.about["at"]) for each in journal if each.kind == "synced"}
    synced |= set(before.values())
    for file, identity in files_of(world).items():
        if identity not in synced:
            _lose_content(file, draw)
    listed = [each for each in journal if each.kind in _OF_FOLDERS and each.number]
    safe = _on_disk(journal, listed)
    if len(listed) > safe:
        for each in reversed(listed[draw.randint(safe, len(listed)) :]):
            _take_back(world, each, kept)


def _lose_content(file: Path, draw: random.Random) -> None:
    size = file.stat().st_size
    fate = draw.choice(("nothing", "part", "zeros", "all"))
    if fate == "nothing":
        os.truncate(file, 0)
    elif fate == "part":
        os.truncate(file, draw.randint(0, size))
    elif fate == "zeros":
        os.truncate(file, 0)
        os.truncate(file, size)


def _on_disk(journal: Sequence[Operation], listed: Sequence[Operation]) -> int:
    """How many of the operations on folders have certainly reached the disk."""
    waiting: dict[str, int] = {}
    safe = done = 0
    places = {id(each): number for number, each in enumerate(listed, 1)}
    for each in journal:
        if id(each) in places:
            done = places[id(each)]
            for path in filter(None, (each.path, each.to)):
                waiting[os.path.dirname(path)] = done
            if each.kind == "create":
                waiting[each.path] = done  # syncing a new file itself is enough
        elif each.kind == "synced" and each.path in waiting:
            safe = max(safe, waiting.pop(each.path))
    return safe


def _take_back(world: Path, done: Operation, kept: Path) -> None:
    path = world / done.path
    saved = kept / f"{done.process}-{done.number}"
    if done.kind == "create":
        if done.about["new"]:
            path.unlink(missing_ok=True)
    elif done.kind == "mkdir":
        shutil.rmtree(path, ignore_errors=True)
    elif done.kind == "rmdir":
        path.mkdir(exist_ok=True)
    elif done.kind == "remove":
        if saved.exists() and path.parent.is_dir():
            shutil.copyfile(saved, path)
    elif (world / done.to).exists():
        os.replace(world / done.to, path)
        if saved.exists():
            shutil.copyfile(saved, world / done.to)
