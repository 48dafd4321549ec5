"""Hashes of files and of values, and whether a folder is still as it was written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files.regular import open_to_read, read_text
from crammed.files.writing import as_json, read_json, write_json


def json_hash(values: Any) -> str:
    """A short name for values that JSON can hold."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of the file's content, in hex."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


HASHES = "hashes.json"


def write_hashes(folder: Path) -> None:
    """Write the SHA-256 of the files directly in a `new_folder` into its ``hashes.json``."""
    hashes = {name: sha256(folder / name) for name in _names(folder)}
    write_json(folder / HASHES, hashes, sync_folder=False)  # `new_folder` syncs it


def damage(folder: Path) -> str | None:
    """How a folder differs from its ``hashes.json``, in a few words; None if it does not.

    Files that it does not list do not matter.
    """
    try:
        hashes = read_json(folder / HASHES)
    except InputError:
        return f"{HASHES} cannot be read"
    if hashes is None:
        return f"{HASHES} is missing"
    if read_text(folder / HASHES) != as_json(hashes):
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
    """Names of the files in a folder, except for its hashes."""
    return sorted(file.name for file in folder.iterdir() if file.is_file() and file.name != HASHES)
