"""Reading and writing files such that nothing half-written is ever taken for complete."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from crammed.errors import InputError

# ---- locks

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


# ---- faults

_MISPLACED = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
"""A file where a folder is needed, or a folder where a file is."""
_FAILING = (errno.EIO, errno.EFBIG, errno.ENXIO, errno.ESTALE)
"""A medium that is failing or gone, or a limit on the size of files."""


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn a full disk or a place that cannot be written to into an `InputError` that says so."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _os_error(str(error))
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk is full: free some space or choose another place than {path}"
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM, *_MISPLACED):
            raise InputError(
                f"cannot write {path}: {os.strerror(number)}; choose another --out"
            ) from error
        if number in _FAILING:
            raise InputError(failing(error, path, number)) from error
        raise


def failing(error: Exception, path: Path | None = None, number: int | None = None) -> str:
    """What to say about an operation that the machine refused, and what to do then."""
    named = getattr(error, "filename", None) or path
    place = f" {os.fsdecode(named)}" if isinstance(named, str | bytes | Path) else ""
    reason = os.strerror(number) if number else getattr(error, "strerror", None) or error
    return (
        f"cannot read or write{place}: {reason}; look after the disk, then type the same command "
        "again: what is finished is kept"
    )


def _os_error(text: str) -> int | None:
    """The error number in a library's ``... (os error 28)``."""
    found = re.search(r"\(os error (\d+)\)", text)
    return int(found[1]) if found else None


# ---- files

_TAIL = 65_536
"""Bytes at the end of a log that hold its last record."""


def write_text(path: Path, text: str, *, sync_folder: bool = True) -> None:
    """Replace the file in one step: readers see the old content or the new, never a part.

    When this returns, the disk has the new content. Makes the file's folder if there is none. A
    link is replaced, and nothing is written to where it leads.

    Args:
        sync_folder: False lets a power cut bring the old content back, which takes less time.

    Raises:
        InputError: it cannot be written, or is a device or a pipe.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is not an ordinary file: choose another one")
    aside = path.with_name(f".{path.name}.tmp")
    with disk_faults(path):
        make_folder(path.parent)
        try:
            aside.unlink(missing_ok=True)  # a crash left it, or somebody made it a link
            with aside.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            if sync_folder:
                _sync(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def write_json(path: Path, values: Any, *, sync_folder: bool = True) -> None:
    """Write JSON as `write_text` does; keys keep their order and NaN is refused."""
    write_text(path, _as_json(values), sync_folder=sync_folder)


def _as_json(values: Any) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: it cannot be read as JSON; restore it from a copy"
        ) from error
    if not isinstance(values, dict):
        raise InputError(
            f"{path} is damaged: it does not hold a JSON object; restore it from a copy"
        )
    return values


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole object of a JSON-lines file, which may be written to; None if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # cut short
            continue
        if isinstance(record, dict):
            return record
    return None


def write_gzip(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a gzip file whose bytes depend on its content alone, not on its name or the time."""
    with disk_faults(path), path.open("wb") as raw:
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for chunk in chunks:
                file.write(chunk)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write the array's bytes alone; numpy's own writer does not report a full disk."""
    with disk_faults(path), path.open("wb") as file:
        file.write(np.ascontiguousarray(array).data)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write the array in the format that `numpy.load` reads, and report a full disk."""
    with disk_faults(path), path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


# ---- folders


def make_folder(path: Path) -> None:
    """Make a folder and those above it, so that a power cut does not take them away again."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def missing_folders(path: Path) -> list[Path]:
    """Those of `path` and the folders above it that do not exist, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove folders, but none that holds something."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears at `path` complete, or not at all.

    Yields a temporary folder beside it to write into; one that a crash left is removed first.
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
    """Wait until the disk has the content of all these files."""
    for file in files:
        _sync(file)


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
    """Rename a folder on the same disk, once all of its content has reached that disk."""
    for each in (*folder.rglob("*"), folder):  # a folder's own content is the names in it
        if each.is_file() or each.is_dir():
            _sync(each)
    if path.exists():
        path.rmdir()  # only ever an empty folder
    folder.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
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
        InputError: the name leads out of the folder, or is none.
    """
    if isinstance(name, str) and name and "\0" not in name:
        path = Path(name)
        if not path.is_absolute() and ".." not in path.parts:
            return folder / path
    raise InputError(f"{listing} names {name!r}, which leads out of its folder: is it damaged?")


# ---- hashes


def json_hash(values: Any) -> str:
    """A short name for values that JSON can hold."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of the file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


HASHES = "hashes.json"


def write_hashes(folder: Path) -> None:
    """Write the SHA-256 of every file of a `new_folder` into its ``hashes.json``."""
    hashes = {name: sha256(folder / name) for name in _names(folder)}
    write_json(folder / HASHES, hashes, sync_folder=False)  # `new_folder` does that


def damage(folder: Path) -> str | None:
    """How a folder differs from its ``hashes.json``, in a few words; None if it does not.

    Files that are not listed there do not matter.
    """
    try:
        hashes = read_json(folder / HASHES)
    except InputError:
        return f"{HASHES} cannot be read"
    if hashes is None:
        return f"{HASHES} is missing"
    if (folder / HASHES).read_text("utf-8") != _as_json(hashes):
        return f"{HASHES} is not as it was written"
    there = set(_names(folder))
    for name, expected in hashes.items():
        if name not in there:
            return f"{name} is missing"
        try:
            if sha256(folder / name) != expected:
                return f"{name} differs from its hash"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def _names(folder: Path) -> list[str]:
    """Names of the files of a folder, but for its hashes."""
    return sorted(file.name for file in folder.iterdir() if file.is_file() and file.name != HASHES)
