"""Finds the files of a source: those of a folder or a glob, or a single file.

Symbolic links are followed, but every folder is entered only once and every file is read only once,
under the name that comes first, so links that lead back up the tree do no harm.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from crammed.config import DataConfig
from crammed.errors import InputError
from crammed.files.folders import inside
from crammed.files.regular import read_text
from crammed.formats.documents import READERS, format_of
from crammed.formats.lines import COMPRESSIONS, File
from crammed.formats.records import is_json
from crammed.hints import did_you_mean


def find_files(name: str) -> list[Path]:
    """The files of known formats that a path or a glob stands for, in reading order.

    Raises:
        InputError: there are none, one has a name that is not UTF-8, or a folder cannot be read.
    """
    path = Path(name).expanduser()
    shown = printable(name)
    try:
        if path.is_dir():
            files = list(_search(path, _first_visit()))
            if not files:
                raise InputError(f"{shown} holds no file of a known format: {_known_formats()}")
        elif path.exists():
            files = [path]
            if format_of(path) is None:
                raise InputError(f"{shown} is of no known format: {_known_formats()}")
        else:
            files = _match(path)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from error
    for file in files:
        _check_name(file)
    return files


def _known_formats() -> str:
    return f"{', '.join(READERS)}; text may be compressed: {', '.join(COMPRESSIONS)}"


def printable(path: str | Path) -> str:
    r"""A path for a message, with bytes that are not UTF-8 and control characters as ``\xNN``."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c >= " " and c != "\x7f" else f"\\x{ord(c):02x}" for c in text)


def _check_name(file: Path) -> None:
    """Refuse a path that manifests and the libraries that read tables cannot represent.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        str(file.absolute()).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the path {printable(file.absolute())} is not UTF-8 text: rename it"
        ) from error


FirstVisit = Callable[[Path], bool]
"""Whether a file or folder is seen for the first time, under any name."""


def _first_visit() -> FirstVisit:
    met: set[str] = set()

    def is_first(path: Path) -> bool:
        real = os.path.realpath(path)
        first = real not in met
        met.add(real)
        return first

    return is_first


def _match(pattern: Path) -> list[Path]:
    """Files that match a glob, and files in folders that match it, sorted."""
    matches = sorted(set(_glob(pattern)))
    if not matches:
        beside = [printable(each.name) for each in pattern.parent.glob("*")]
        raise InputError(
            f"no such data: {printable(pattern)}: {did_you_mean(pattern.name, beside)}name a file, "
            "a folder, a glob, - for standard input, python-docs, or hub:NAME"
        )
    enter = _first_visit()
    inside_folders = [file for each in matches if each.is_dir() for file in _search(each, enter)]
    alone = (each for each in matches if each.is_file() and _is_data(each))
    is_first = _first_visit()
    files = [file for file in sorted({*inside_folders, *alone}) if is_first(file)]
    if not files:
        raise InputError(
            f"{printable(pattern)} matches no file of a known format: {_known_formats()}"
        )
    return files


def _glob(pattern: Path) -> Iterator[Path]:
    """Like `glob.glob`, except that ``**`` enters every folder only once."""
    parts = pattern.parts
    if "**" not in parts:
        yield from map(Path, glob.glob(str(pattern)))
        return
    at = parts.index("**")
    is_first = _first_visit()
    for start in sorted(glob.glob(str(Path(*parts[:at])) if at else ".")):
        root = Path(start)
        for folder in _folders(root, is_first) if root.is_dir() else ():
            if at + 1 == len(parts):
                yield folder
                yield from map(Path, glob.glob(str(Path(glob.escape(str(folder)), "*"))))
            else:
                yield from _glob(Path(glob.escape(str(folder)), *parts[at + 1 :]))


def _folders(folder: Path, is_first: FirstVisit) -> Iterator[Path]:
    """A folder and the folders below it that are not hidden."""
    if not is_first(folder):
        return
    yield folder
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _folders(entry, is_first)


def _search(folder: Path, is_first: FirstVisit) -> Iterator[Path]:
    """Files of known formats in a folder and the folders below it, sorted by path.

    For a folder that `datasets` saved, they are the files that it lists, in that order. Hidden
    files and folders are ignored.
    """
    if not is_first(folder):
        return
    saved = _saved_by_datasets(folder)
    if saved:
        yield from saved
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _search(entry, is_first)
        elif _is_data(entry) and is_first(entry):
            yield entry


def ignored_files(data: DataConfig) -> Counter[str]:
    """Number of files of unknown formats in the folders that are read, by suffix."""
    others: Counter[str] = Counter()
    for config in data.sources:
        root = Path(config.path).expanduser()
        if not (config.is_on_disk and root.is_dir()) or _saved_by_datasets(root):
            continue
        known = set(map(os.path.realpath, _search(root, _first_visit())))
        for folder in _folders(root, _first_visit()):
            for file in folder.iterdir():
                seen = not file.name.startswith(".") and file.is_file()
                if seen and os.path.realpath(file) not in known:
                    others[printable(file.suffix or file.name)] += 1
    return others


def _saved_by_datasets(folder: Path) -> list[Path]:
    """The files of a data set saved here by `datasets.save_to_disk`; empty if there is none.

    Raises:
        InputError: a listed name leads out of the folder.
    """
    listing = folder / "state.json"
    try:
        names = [entry["filename"] for entry in json.loads(read_text(listing))["_data_files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [inside(folder, name, printable(listing)) for name in names]


def _is_data(file: Path) -> bool:
    """Whether a file found in a folder is data; JSON without records is taken for settings."""
    if format_of(file) != ".json":
        return format_of(file) is not None
    if file.name == "dataset_dict.json":
        return False
    try:
        return not stat.S_ISREG(file.stat().st_mode) or is_json(File(file, printable(file)))
    except (InputError, OSError):
        return True  # reading it will report what is wrong
