"""What fine-tuned models predict, kept in files that are complete or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from crammed.files import disk_faults

Outputs = dict[str, NDArray[np.float32]]


def save(file: Path, arrays: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays and what they are; the file appears complete or not at all."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk_faults(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as stream:
                np.savez(stream, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)


def load(file: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """What `save` wrote, or None where there is nothing that can be read."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
            about = json.loads(str(arrays.pop("about")))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing, or cut short
        return None
    return arrays, about
