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

from safetensors import SafetensorError

from crammed.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Replace the file at once: readers see the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.tmp")
    with disk_faults(path):
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


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder one may not write to into an `InputError` that says so."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _os_error(str(error))
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk is full: free some space or choose another place than {path}"
            ) from error
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(
                f"cannot write {path}: {os.strerror(number)}; choose another --out"
            ) from error
        raise


def _os_error(text: str) -> int | None:
    """The number in a library's ``... (os error 28)``."""
    found = re.search(r"\(os error (\d+)\)", text)
    return int(found[1]) if found else None


def sha256(path: Path) -> str:
    """Hex digest of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
