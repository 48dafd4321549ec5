"""Where documents come from: files, folders, globs, standard input, `python-docs` and the hub.

A source is a list of parts, such as files. Every part yields its documents in the same order each
time, and has a fingerprint that identifies its content.
"""

from __future__ import annotations

import atexit
import functools
import glob
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from crammed.config import DataConfig, SourceConfig
from crammed.data.python_docs import PythonDocs
from crammed.errors import InputError
from crammed.files import sha256
from crammed.formats import hub
from crammed.formats.documents import READERS, ReadOptions, format_of
from crammed.formats.lines import COMPRESSIONS, File, read_faults
from crammed.formats.records import is_json_lines


class SourceChanged(InputError):
    """A part is not the same any more as when reading it began."""


class Part(Protocol):
    """A run of documents that is read in one go, such as a file; can be pickled."""

    @property
    def name(self) -> str:
        """Its name in reports; a file's name without the folder."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content, without the names of this machine's folders."""
        ...

    def state(self) -> dict[str, Any]:
        """What differs if the content does, on this machine; takes no time to find out."""
        ...

    def documents(self) -> Iterator[str]:
        """The documents, always in the same order.

        Raises:
            InputError: the content is damaged or unexpected; names the file and the line.
        """
        ...


@dataclass(frozen=True)
class FilePart:
    """The documents of one file."""

    name: str
    file: File
    format: str
    """The key of `READERS` for it."""
    options: ReadOptions

    def fingerprint(self) -> dict[str, Any]:
        self.check()
        with read_faults(self.file):
            path = self.file.path
            return {"name": self.name, "bytes": path.stat().st_size, "sha256": sha256(path)}

    def state(self) -> dict[str, Any]:
        self.check()
        with read_faults(self.file):
            now = self.file.path.stat()
        times = {"modified": now.st_mtime_ns, "changed": now.st_ctime_ns}
        return {"device": now.st_dev, "inode": now.st_ino, "bytes": now.st_size, **times}

    def documents(self) -> Iterator[str]:
        self.check()
        return READERS[self.format](self.file, self.options)

    def check(self) -> None:
        """Find what can be found wrong without reading the file.

        Raises:
            InputError: the file is gone or empty, or `where` is used with plain text.
        """
        try:
            size = self.file.path.stat().st_size
        except OSError as error:
            raise InputError(f"{self.file.shown} cannot be read: {error.strerror}") from error
        if size == 0:
            raise InputError(f"{self.file.shown} is empty")
        if self.options.where and self.format == ".txt":
            raise InputError(
                f"{self.file.shown} is plain text, whose documents have no fields: leave `where` "
                "out for it"
            )


@dataclass(frozen=True)
class Source:
    """One entry of `data.sources`."""

    name: str
    parts: tuple[Part, ...]
    weight: float
    """How often each document is packed."""
    max_characters: int | None
    """Begin no further document once this many have been read; None for no limit."""
    reading: dict[str, Any]
    """What besides a part's fingerprint decides its documents, as plain values."""


def open_sources(data: DataConfig) -> list[Source]:
    """Find the parts of every source; files are not read yet, but hub data sets are looked up.

    Raises:
        InputError: there is no source, or one is missing, empty or of an unknown format.
    """
    if not data.sources:
        raise InputError("no data: name a file or folder of text, as in --data my-text.jsonl.zst")
    sources = [_open(config, data) for config in data.sources]
    names = Counter(source.name for source in sources)
    return [
        replace(source, name=f"{source.name} ({number})") if names[source.name] > 1 else source
        for number, source in enumerate(sources, 1)
    ]


def _open(config: SourceConfig, data: DataConfig) -> Source:
    options = ReadOptions(
        config.documents or data.documents, config.text_field or data.text_field, config.where
    )
    reading = asdict(options)
    parts: list[Part]
    if config.path == "python-docs":
        if config.where:
            raise InputError("python-docs has no fields: leave `where` out for it")
        name, parts = "python-docs", [PythonDocs()]
    elif config.path.startswith("hub:"):
        name = config.path.removeprefix("hub:")
        part = hub.open_part(name, config.text_field, options)
        reading = {**asdict(part.options), "rows_per_document": part.dataset.rows_per_document}
        parts = [part]
    elif config.path == "-":
        name, parts = "standard-input", [_standard_input(options)]
    else:
        name = Path(config.path).name or Path(config.path).resolve().name
        files = _file_parts(config.path, options)
        if data.unreadable == "stop":
            for file in files:
                file.check()
        parts = [*files]
    return Source(config.name or name, tuple(parts), config.weight, config.max_characters, reading)


def _file_parts(name: str, options: ReadOptions) -> list[FilePart]:
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            files = list(_search(path))
            if not files:
                raise InputError(f"{name} holds no file of a known format: {_known_formats()}")
        elif path.exists():
            files = [path]
            if format_of(path) is None:
                raise InputError(f"{name} is of no known format: {_known_formats()}")
        else:
            files = _match(path)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from error
    return [
        FilePart(file.name, File(file.absolute(), str(file)), format_of(file) or "", options)
        for file in files
    ]


def _known_formats() -> str:
    return f"{', '.join(READERS)}; text may be compressed: {', '.join(COMPRESSIONS)}"


def _match(pattern: Path) -> list[Path]:
    """Files that match a glob, and files in folders that match it, sorted."""
    matches = sorted(Path(match) for match in glob.glob(str(pattern), recursive=True))
    if not matches:
        raise InputError(
            f"no such data: {pattern} (a file, a folder, a glob, - for standard input, "
            "python-docs, or hub:NAME)"
        )
    inside = [file for each in matches if each.is_dir() for file in _search(each)]
    files = {*inside, *(each for each in matches if each.is_file() and _is_data(each))}
    if not files:
        raise InputError(f"{pattern} matches no file of a known format: {_known_formats()}")
    return sorted(files)


def _search(folder: Path) -> Iterator[Path]:
    """Files of known formats in a folder and the folders below it, sorted by path.

    A folder that `datasets` saved lists its files itself, in their order. Hidden files and folders
    are ignored.
    """
    saved = _saved_by_datasets(folder)
    if saved:
        yield from saved
        return
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _search(entry)
        elif _is_data(entry):
            yield entry


def ignored_files(data: DataConfig) -> Counter[str]:
    """Number of files of unknown formats in the folders that are read, by suffix."""
    others: Counter[str] = Counter()
    for config in data.sources:
        folder = Path(config.path).expanduser()
        if not (config.is_on_disk and folder.is_dir()) or _saved_by_datasets(folder):
            continue
        known = set(_search(folder))
        for file in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if not hidden and file.is_file() and file not in known:
                others[file.suffix or file.name] += 1
    return others


def _saved_by_datasets(folder: Path) -> list[Path]:
    """The files of a data set that `datasets.save_to_disk` wrote here; empty if it did not."""
    try:
        state = json.loads((folder / "state.json").read_text("utf-8"))
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def _is_data(file: Path) -> bool:
    """Whether a file found in a folder is data; JSON that is not JSON lines is settings."""
    if format_of(file) != ".json":
        return format_of(file) is not None
    if file.name == "dataset_dict.json":
        return False
    try:
        return is_json_lines(File(file, str(file)))
    except InputError:
        return True  # reading it will report what is wrong


def _standard_input(options: ReadOptions) -> FilePart:
    file = File(_spooled(), "standard input")
    part = FilePart("standard-input", file, ".txt", options)
    if file.path.stat().st_size and is_json_lines(file):
        part = FilePart(part.name, file, ".jsonl", options)
    part.check()
    return part


@functools.cache
def _spooled() -> Path:
    """Standard input, which can be read only once, as a file that lasts as long as this process."""
    if sys.stdin.isatty():
        raise InputError("standard input is a terminal: pipe text into it, or name a file")
    descriptor, name = tempfile.mkstemp(prefix="crammed-standard-input-")
    atexit.register(Path(name).unlink, missing_ok=True)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Path(name)
