"""Stores named arrays with a description in one .npz file, which is either complete or absent."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from crammed.files.regular import open_to_read
from crammed.files.writing import write_chunks

Arrays = dict[str, NDArray[Any]]
_TAKEN = ("about", "file", "allow_pickle")
"""Names that mean something else to `numpy.savez` or here; a file has them with a = before them."""
_DAMAGED = (
    *(OSError, EOFError, BadZipFile, zlib.error),  # missing or truncated
    *(ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError),  # another file
    *(NotImplementedError, RuntimeError),  # a zip file of a newer version, or with a password
)
"""What reading a file raises that is not what `save_arrays` wrote."""


def save_arrays(file: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    """Write arrays and a description of them; the file appears complete or not at all.

    Args:
        about: the description, which must be serializable as JSON.

    Raises:
        InputError: the file cannot be written.
    """
    content = io.BytesIO()
    stored = {f"={name}" if name in _TAKEN else name: array for name, array in arrays.items()}
    np.savez(content, about=np.array(json.dumps(about, default=str)), **stored)  # type: ignore[arg-type]
    write_chunks(file, [content.getbuffer()], sync_folder=False)


def load_arrays(file: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """What `save_arrays` wrote, or None if there is no readable file."""
    try:
        with open_to_read(file) as raw, np.load(raw, allow_pickle=False) as stored:
            named = {name: stored[name] for name in stored.files}
            about = json.loads(str(named.pop("about")))
            arrays = {name.removeprefix("="): array for name, array in named.items()}
    except _DAMAGED:
        return None
    return (arrays, about) if isinstance(about, dict) else None
