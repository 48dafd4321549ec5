"""Messages for a full disk, a failing one, or a place that cannot be written to."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from crammed.errors import InputError

_MISPLACED = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
"""A file where a folder is needed, or a folder where a file is."""
_FAILING = (errno.EIO, errno.EFBIG, errno.ENXIO, errno.ESTALE)
"""A medium that is failing or gone, or a limit on the size of files."""
AGAIN = "restore it from a copy, or download it again"
"""What to do about a damaged file."""
_MEND = "check the disk, then repeat the same command: what is finished is kept"
_MENDS = {
    errno.EACCES: "its permissions forbid it: change them with chmod, or run as its owner",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def disk_faults(path: Path, otherwise: str | None = None) -> Iterator[None]:
    """Turn a full disk or a place that cannot be written to into an `InputError` that says so.

    Args:
        otherwise: what to do about a full disk if its user has not chosen the place.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None) or _os_error(str(error))
        if number in (errno.ENOSPC, errno.EDQUOT):
            otherwise = otherwise or f"choose another place than {path}"
            raise InputError(f"the disk is full: free some space or {otherwise}") from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM, *_MISPLACED):
            why = f"cannot write {path}: {os.strerror(number)}; choose another place"
            if (other := _elsewhere(error, path)) is not None:  # such as a library's cache
                why = f"cannot write {other}: {os.strerror(number)}; it is in the way of {path}"
            raise InputError(why) from error
        if number in _FAILING:
            raise InputError(failing(error, path, number)) from error
        raise


def _elsewhere(error: Exception, path: Path) -> str | None:
    """The file that an error names, if it is not in the folder of `path`."""
    named = getattr(error, "filename", None)
    if not isinstance(named, str | bytes):
        return None
    file = os.fsdecode(named)
    within = Path(file).absolute().is_relative_to(path.absolute().parent)
    return None if within or file in map(str, path.absolute().parents) else file


def failing(error: Exception, path: Path | None = None, number: int | None = None) -> str:
    """A message about an operation that the machine refused, and what to do about it."""
    named = getattr(error, "filename", None) or path
    place = f" {os.fsdecode(named)}" if isinstance(named, str | bytes | Path) else ""
    reason = os.strerror(number) if number else getattr(error, "strerror", None) or error
    mend = _MENDS.get(number or getattr(error, "errno", None) or 0, _MEND)
    return f"cannot read or write{place}: {reason}; {mend}"


def _os_error(text: str) -> int | None:
    """The error number in ``... (os error 28)`` or ``[Errno 28] ...``, as libraries quote it."""
    found = re.search(r"(?:\(os error |\[Errno )(\d+)", text)
    return int(found[1]) if found else None
