"""Finds the files of a source: those of a folder or a glob, or a single file.

Symbolic links are followed, but every folder is entered only once and every file is read only once,
under the name that comes first, so links that lead back up the tree do no harm.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crammed.config import FileFormat
from crammed.errors import InputError
from crammed.files.folders import LOST_AND_FOUND, expanded, inside
from crammed.files.regular import read_text
from crammed.formats.documents import (
    READERS,
    format_of,
    has_suffix,
    is_about_data,
    kind_of,
    lacks_field,
)
from crammed.formats.lines import File, printable
from crammed.formats.sniff import format_by_content, is_json
from crammed.formats.streams import COMPRESSIONS
from crammed.hints import did_you_mean

_OF_RECORDS = frozenset((".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"))


@dataclass(frozen=True)
class Wanted:
    """Which files of a folder are read, and as what.

    Attributes:
        format: the format of all files; auto goes by their names and contents.
        text_field: the column that makes a table of text.
        skip: whether to leave out folders that cannot be read.
    """

    format: FileFormat = "auto"
    text_field: str = "text"
    skip: bool = False

    def format_of(self, file: str) -> str | None:
        """The key in `READERS` for a file found in a folder; None if it is not data."""
        if self.format != "auto":
            return f".{self.format}"
        format = format_of(file)
        try:
            if format == ".json":  # without records it is taken for settings
                if os.path.basename(file) == "dataset_dict.json":
                    return None
                is_pipe = not stat.S_ISREG(os.stat(file).st_mode)
                return format if is_pipe or is_json(_file(file)) else None
            if format is None and not has_suffix(file) and stat.S_ISREG(os.stat(file).st_mode):
                return format_by_content(_file(file), self.text_field)
        except (InputError, OSError):
            return format or ".txt"  # reading it will report what is wrong
        return format


@dataclass
class Found:
    """The absolute paths of a source's files in reading order, each with its key in `READERS`.

    Attributes:
        wanted: what the search looks for.
        ignored: number of other files, by suffix, and of folders that are left out.
        without_field: names of JSON files that are left out for want of a field of text.
    """

    wanted: Wanted = Wanted()
    files: list[tuple[str, str]] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    without_field: list[str] = field(default_factory=list)

    def _about_data(self) -> set[str]:
        """Files that describe records; pages do not if they outnumber the files of records."""
        pages = sum(format == ".html" for _, format in self.files)
        are_text = pages > sum(format in _OF_RECORDS for _, format in self.files)
        return {
            file
            for file, format in self.files
            if is_about_data(file, format) and not (are_text and format == ".html")
        }

    def leave_out_others(self) -> None:
        """Ignore files about the data, such as a read-me beside it."""
        about = self._about_data()
        self.ignored.update(kind_of(file) for file, _ in self.files if file in about)
        self.files = [each for each in self.files if each[0] not in about]

    def leave_out_settings(self) -> None:
        """Leave out JSON files without a field of text, such as manifest.json beside text."""
        settings = {
            file
            for file, format in self.files
            if format == ".json" and os.path.isfile(file)
            if lacks_field(_file(file), self.wanted.text_field)
        }
        others = [each for each in self.files if each[0] not in settings]
        if not self._about_data().issuperset(file for file, _ in others):
            names = (os.path.basename(file) for file, _ in self.files if file in settings)
            self.without_field = [printable(name) for name in names]
            self.files = others


def _file(path: str) -> File:
    return File(Path(path), printable(path))


def find_files(name: str, wanted: Wanted = Wanted()) -> Found:
    """The files of known formats that a path or a glob stands for.

    Raises:
        InputError: there are none, one has a name that is not UTF-8, or a folder cannot be read.
    """
    path = expanded(name)
    shown = printable(name)
    found = Found(wanted)
    try:
        if path.is_dir():
            if _made_of_text(path) == "corpus":
                raise InputError(
                    f"{shown} is a corpus, not text: train on it with --corpus {shown}, or add "
                    f"text to it with crammed prepare --extend {shown}"
                )
            found.files = list(_search(path, _FirstVisit(), found))
            if not found.files:
                raise InputError(f"{shown} holds no file of a known format: {_why_none(found)}")
        elif path.exists():
            named = format_of(path) if wanted.format == "auto" else None
            if (format := named or wanted.format_of(str(path))) is None:
                raise InputError(
                    f"{shown} is of no known format: {_known_formats()}; set its format, "
                    "as in data.format=txt"
                )
            found.files = [(str(path), format)]
        else:
            _match(path, found)
        here = "" if path.is_absolute() else os.getcwd()
    except OSError as error:
        at = printable(error.filename or name)
        raise InputError(f"{at} cannot be read: {error.strerror}") from error
    found.files = [(os.path.join(here, file), format) for file, format in found.files]
    for file, _ in found.files:
        try:  # manifests and the libraries that read tables need UTF-8
            file.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the path {printable(file)} is not UTF-8 text: rename it") from error
    if wanted.format == "auto":
        found.leave_out_settings()
        if any(format in _OF_RECORDS for _, format in found.files):
            found.leave_out_others()
    return found


def _why_none(found: Found) -> str:
    """What is wrong with files of which none is read, or else the formats that are."""
    if ".json" in found.ignored:
        return (
            "its .json files hold neither an object on each line nor an array of objects; convert "
            "them with jq -c . FILES > all.jsonl"
        )
    return _known_formats()


def _known_formats() -> str:
    return f"{', '.join(READERS)}; text may be compressed: {', '.join(COMPRESSIONS)}"


class _FirstVisit:
    """Whether a file or folder is seen for the first time, under any name."""

    def __init__(self) -> None:
        self._met: set[str] = set()
        self._real_folder = functools.cache(os.path.realpath)

    def __call__(self, path: Path | str, *, may_be_link: bool = True) -> bool:
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or (may_be_link and os.path.islink(path)):
            real = os.path.realpath(path)
        else:  # without looking at every folder above it again
            real = os.path.join(self._real_folder(folder), name)
        first = real not in self._met
        self._met.add(real)
        return first


def _match(pattern: Path, found: Found) -> None:
    """Find the files that match a glob, and files in folders that match it, sorted."""
    matches = sorted(set(_glob(pattern, found)))
    if not matches:
        beside = [printable(each.name) for each in pattern.parent.glob("*")]
        raise InputError(
            f"no such data: {printable(pattern)}: {did_you_mean(pattern.name, beside)}name a file, "
            "a folder, a glob, - for standard input, python-docs, or hub:NAME"
        )
    folders = {each for each in matches if each.is_dir()}
    enter = _FirstVisit()
    formats = {
        Path(file): format
        for each in sorted(folders)
        for file, format in _enter(each, enter, found)
    }
    for each in matches:
        if each in folders:
            continue
        if (format := found.wanted.format_of(str(each))) is not None:
            formats[each] = format
        elif each.is_file() and folders.isdisjoint(each.parents):  # else it is counted there
            found.ignored[kind_of(each)] += 1
    is_first = _FirstVisit()
    found.files = [(str(file), formats[file]) for file in sorted(formats) if is_first(file)]
    if not found.files:
        raise InputError(
            f"{printable(pattern)} matches no file of a known format: {_why_none(found)}"
        )


def _glob(pattern: Path, found: Found) -> Iterator[Path]:
    """Like `glob.glob`, except that ``**`` enters every folder only once."""
    parts = pattern.parts
    if "**" not in parts:
        yield from map(Path, glob.glob(str(pattern)))
        return
    at = parts.index("**")
    is_first = _FirstVisit()
    for start in sorted(glob.glob(str(Path(*parts[:at])) if at else ".")):
        root = Path(start)
        for folder in _folders(root, is_first, found) if root.is_dir() else ():
            if at + 1 == len(parts):
                yield folder
                yield from map(Path, glob.glob(str(Path(glob.escape(str(folder)), "*"))))
            else:
                below = Path(glob.escape(str(folder)), *parts[at + 1 :])
                yield from _glob(below, found)


def _folders(folder: Path, is_first: _FirstVisit, found: Found) -> Iterator[Path]:
    """A folder and the folders below it that are not hidden."""
    if not is_first(folder):
        return
    yield folder
    with _unless_unreadable(folder, found):
        for entry in sorted(folder.iterdir()):
            hidden = entry.name.startswith(".") or entry.name == LOST_AND_FOUND
            if entry.is_dir() and not hidden:
                yield from _folders(entry, is_first, found)


@contextmanager
def _unless_unreadable(folder: Path, found: Found) -> Iterator[None]:
    """Count a folder that cannot be read, if such are left out."""
    try:
        yield
    except OSError as error:
        if not found.wanted.skip:
            raise InputError(
                f"{printable(folder)} cannot be read: {error.strerror}; leave such folders out "
                "with data.unreadable=skip"
            ) from error
        found.ignored[f"folder that cannot be read ({printable(folder)})"] = 1  # if met twice, too


def _search(folder: Path, is_first: _FirstVisit, found: Found) -> Iterator[tuple[str, str]]:
    """Files of known formats in a folder and the folders below it, sorted by path.

    For a folder that `datasets` saved, they are the files that it lists, in that order. Hidden
    files and folders are ignored; `found` counts other files.
    """
    if not is_first(folder):
        return
    saved = _saved_by_datasets(folder)
    if saved:
        for named in saved:
            if (format := format_of(named)) is not None:
                yield str(named), format
        return
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    begin = os.path.join(folder, "") if folder.parts else ""  # of a path as `Path` writes it
    for entry in entries:
        file, is_link = begin + entry.name, entry.is_symlink()
        if entry.name.startswith("."):
            continue
        if os.path.isdir(file) if is_link else entry.is_dir():
            yield from _enter(Path(file), is_first, found)
        elif (format := found.wanted.format_of(file)) is None:
            if os.path.isfile(file):
                found.ignored[kind_of(file)] += 1
        elif is_first(file, may_be_link=is_link):
            yield file, format


def _enter(folder: Path, is_first: _FirstVisit, found: Found) -> Iterator[tuple[str, str]]:
    """As `_search`, for a folder that was not named itself; if it is left out, it is counted."""
    if (kind := _made_of_text(folder)) is not None:
        if is_first(folder):
            found.ignored[f"{kind} ({printable(folder.name)})"] += 1
    elif folder.name != LOST_AND_FOUND:
        with _unless_unreadable(folder, found):
            yield from _search(folder, is_first, found)


def _made_of_text(folder: Path) -> str | None:
    """What a folder is if text was prepared or trained on there, and may be held out or dropped."""
    for kind, names in _MADE.items():
        if all(os.path.exists(folder / name) for name in names):
            return kind
    return None


_MADE = {
    "corpus": ("manifest.json", "heldout.jsonl.gz"),
    "working folder": ("parts", "lock"),
    "run": ("config.json", "heartbeat.json"),
}


def _saved_by_datasets(folder: Path) -> list[Path]:
    """The files of a data set saved here by `datasets.save_to_disk`; empty if there is none."""
    listing = folder / "state.json"
    try:
        names = [entry["filename"] for entry in json.loads(read_text(listing))["_data_files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [inside(folder, name, printable(listing)) for name in names]
