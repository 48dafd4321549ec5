"""Temporary folders that do not long outlive their process, even if it is killed.

Each is locked while its process lives. Most commands begin by removing those
whose lock is free, and so does making one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crammed.files.faults import disk_faults

_PREFIX = "crammed-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in the system's temporary directory, removed at the end.

    Raises:
        InputError: the disk is full, or the directory cannot be written to.
    """
    place = Path(tempfile.gettempdir())
    remove_left_overs()
    with disk_faults(place):
        folder, lock = _locked_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(place: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # a process took it for that of a dead one, and removed it
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits if a process is about to remove it
        if folder.exists():
            return folder, lock
        os.close(lock)


def remove_left_overs() -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or just gone
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
