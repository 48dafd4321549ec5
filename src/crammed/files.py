"""Writing so that nothing half-written is ever taken for complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from crammed.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Replace the file at once: readers see the old content or the new, never a part.

    Its folder is made where there is none.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    """Like `write_text`; keys keep their order, NaN is refused."""
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` complete, or not at all.

    Yields a folder beside it to write into; an older one left by a crash is cleared away first.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with disk_faults(path):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            yield aside
            for file in aside.rglob("*"):
                if file.is_file():
                    _sync(file)
            if path.exists():
                path.rmdir()  # only ever an empty folder
            aside.replace(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_MISPLACED = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
"""A file where a folder would have to be, or a folder where the file would."""


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn a full disk or a place one may not write to into an `InputError` that says so."""
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
        raise


def _os_error(text: str) -> int | None:
    """The number in a library's ``... (os error 28)``."""
    found = re.search(r"\(os error (\d+)\)", text)
    return int(found[1]) if found else None


def write_array(path: Path, array: NDArray[Any]) -> None:
    """The array's bytes alone; numpy's own writer does not say that a disk is full."""
    with disk_faults(path), path.open("wb") as file:
        file.write(np.ascontiguousarray(array).data)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """The array as numpy.load reads it."""
    with disk_faults(path), path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no such file."""
    if not path.exists():
        return None
    values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return values


def publish(folder: Path, path: Path) -> None:
    """Let a finished folder appear at `path`, complete or not at all."""
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_dev != path.parent.stat().st_dev:
            with new_folder(path) as aside:
                shutil.copytree(folder, aside, dirs_exist_ok=True)
            shutil.rmtree(folder)
            return
        for file in folder.iterdir():
            _sync(file)
        if path.exists():
            path.rmdir()  # only ever an empty folder
        folder.replace(path)
        _sync(path.parent)


def json_hash(values: Any) -> str:
    """A short name for JSON-able values."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def sha256(path: Path) -> str:
    """Hex digest of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
