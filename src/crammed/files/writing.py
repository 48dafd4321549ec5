"""Writes files whole or not at all, and reads them with one-line messages for what is wrong."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import check_above, make_folder, sync
from crammed.files.regular import open_new, open_to_read, read_text

_TAIL = 65_536
"""Bytes at the end of a log within which its last record is looked for."""


def write_text(path: Path, text: str, *, sync_folder: bool = True) -> None:
    """Replace the file in one step: readers see the old content or the new, never a part.

    When this returns, the new content is on the disk. Makes the file's folder if there is none. A
    link is itself replaced; nothing is written to its target.

    Args:
        sync_folder: False is faster, but a power cut may bring the old content back.

    Raises:
        InputError: it cannot be written, or is a device or a pipe.
    """
    write_chunks(path, [text.encode()], sync_folder=sync_folder)


def write_chunks(
    path: Path, chunks: Iterable[bytes | memoryview], *, sync_folder: bool = True
) -> None:
    """Do as `write_text` with content that need not be in memory all at once."""
    check_file(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # others may write the same file
    with disk_faults(path):
        make_folder(path.parent)
        try:
            with open_new(aside) as file:  # one may be left by a crash, or be a planted link
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            _replace(aside, path)
            if sync_folder:
                sync(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Check that a file can be written at `path`, before the work that leads to its content.

    Raises:
        InputError: it is a folder, a device or a pipe, or nobody may write there.
    """
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; choose another place")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not an ordinary file: choose another one")
    check_above(path, "place")


def _replace(aside: Path, path: Path) -> None:
    """Put a file in the place of another; one that is mounted by itself is rewritten instead."""
    try:
        aside.replace(path)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        to = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        with open_to_read(aside) as source, os.fdopen(to, "wb") as file:
            file.truncate()
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())


def write_json(path: Path, values: Any, *, sync_folder: bool = True) -> None:
    """Write JSON as `write_text` does; keys keep their order and NaN is refused."""
    write_text(path, as_json(values), sync_folder=sync_folder)


def as_json(values: Any) -> str:
    """The text that `write_json` writes."""
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file.

    Raises:
        InputError: it cannot be read, or holds something else.
    """
    if not path.exists():
        return None
    try:
        values = json.loads(read_text(path), parse_constant=int)  # which refuses NaN and Infinity
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
    """The last whole object of a JSON-lines file, which may be growing; None if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    if not path.exists():
        return None
    with open_to_read(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().splitlines()
    return next((each for each in map(json_object, reversed(lines)) if each is not None), None)


def json_object(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if a crash cut it short, or it is something else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def write_gzip(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a gzip file whose bytes depend only on its content, not on its name or the time."""
    with disk_faults(path), open_new(path) as raw:
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for chunk in chunks:
                file.write(chunk)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write only the array's bytes; numpy's own writer does not report a full disk."""
    write_arrays(path, [array])


def write_arrays(path: Path, arrays: Iterable[NDArray[Any]]) -> None:
    """Write the bytes of arrays one after the other, as `write_array` does."""
    with disk_faults(path), open_new(path) as file:
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write the array in the format that `numpy.load` reads, and report a full disk."""
    save_pieces(path, array.shape, array.dtype, [array])


def save_pieces(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Iterable[NDArray[Any]]
) -> None:
    """As `save_array`, with the numbers of an array of this shape in pieces, in row-major order."""
    kind = np.lib.format.dtype_to_descr(dtype)
    header = {"shape": shape, "fortran_order": False, "descr": kind}
    with disk_faults(path), open_new(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)
