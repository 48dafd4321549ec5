"""Locks on folders, which the system releases when their process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import make_folder
from crammed.files.regular import refuse_links

_TO_LOCK = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
_A_LOOK = 0.1
"""Seconds within which a process that only looks at a lock has let go of it."""


class FolderLock:
    """An exclusive lock on a folder, held until `release`, the end of a ``with``, or a crash.

    Args:
        folder: created if it does not exist.
        shown: path that messages name instead of the folder.
        file: name of the lock file in the folder.

    Raises:
        InputError: another process holds the lock, the folder cannot be made, or it holds a link
            or something else that is not an ordinary file.
    """

    def __init__(self, folder: Path, shown: Path | None = None, file: str = ".lock") -> None:
        with disk_faults(folder):
            refuse_links(folder)
            make_folder(folder)
            self._descriptor = os.open(folder / file, _TO_LOCK, 0o644)
        try:
            _lock(self._descriptor)
        except BlockingIOError as error:
            self.release()
            raise in_use(shown or folder) from error
        except OSError as error:  # as on file systems without locks
            self.release()
            raise InputError(f"{shown or folder} cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Release the lock if what it is held for fails to begin: this process may try again."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _lock(descriptor: int) -> None:
    """Take a lock; tried twice, since `is_locked` holds a lock for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_A_LOOK)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def in_use(folder: Path) -> InputError:
    """The error that another process holds the lock on a folder."""
    return InputError(
        f"{folder} is in use by another process: wait for it, or choose another folder"
    )


def is_locked(folder: Path) -> bool:
    """Whether a process now holds a `FolderLock` on the folder, in the default lock file."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # never locked
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
