"""Locks on folders, which the system releases when their process ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import make_folder

_A_LOOK = 0.1
"""Seconds within which a look at a lock is over."""


class FolderLock:
    """An exclusive lock on a folder, held until `release`, the end of a ``with``, or a crash.

    Args:
        folder: made if it does not exist.
        shown: what messages name, if not the folder itself.
        file: name of the lock file in the folder.

    Raises:
        InputError: another process holds the lock, or the folder cannot be made.
    """

    def __init__(self, folder: Path, shown: Path | None = None, file: str = ".lock") -> None:
        with disk_faults(folder):
            make_folder(folder)
            self._descriptor = os.open(folder / file, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            _lock(self._descriptor)
        except BlockingIOError as error:
            self.release()
            raise InputError(
                f"{shown or folder} is in use by another process: wait for it"
            ) from error
        except OSError as error:  # as on file systems without locks
            self.release()
            raise InputError(f"{shown or folder} cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        """Let another process have the folder."""
        os.close(self._descriptor)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _lock(descriptor: int) -> None:
    """Take a lock; one that is only looked at (`is_locked`) is free again in a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_A_LOOK)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Whether a process holds a `FolderLock` on the folder now."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:  # it has never been locked
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # as on file systems without locks
        return False
    finally:
        os.close(descriptor)
    return False
