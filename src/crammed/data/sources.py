"""Where documents come from: files, folders, globs, standard input, `python-docs` and the hub.

A source is a list of parts (a file, a stream); every part yields its documents in the same order
each time and says what identifies its content.
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
from crammed.formats.documents import READERS, Wanted, format_of
from crammed.formats.lines import COMPRESSIONS, File, faults, open_text
from crammed.formats.records import is_json_lines

__all__ = ["FilePart", "Part", "Source", "open_sources", "open_text"]


class Part(Protocol):
    """A run of documents that is read in one go; can be pickled."""

    @property
    def name(self) -> str:
        """What reports call it: of a file, the name without its folder."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content, without a word about this machine's folders."""
        ...

    def documents(self) -> Iterator[str]:
        """The documents, always in the same order.

        Raises:
            InputError: damaged or unexpected content; names the file and the line.
        """
        ...


@dataclass(frozen=True)
class FilePart:
    """The documents of one file."""

    name: str
    file: File
    format: str
    """The key of `READERS` that reads it."""
    wanted: Wanted

    def fingerprint(self) -> dict[str, Any]:
        self.check()
        with faults(self.file):
            path = self.file.path
            return {"name": self.name, "bytes": path.stat().st_size, "sha256": sha256(path)}

    def documents(self) -> Iterator[str]:
        self.check()
        return READERS[self.format](self.file, self.wanted)

    def check(self) -> None:
        """Find what is wrong without reading.

        Raises:
            InputError: the file is gone or empty, or `where` is asked of plain text.
        """
        try:
            size = self.file.path.stat().st_size
        except OSError as error:
            raise InputError(f"{self.file.shown} cannot be read: {error.strerror}") from error
        if size == 0:
            raise InputError(f"{self.file.shown} is empty")
        if self.wanted.where and self.format == ".txt":
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
    """Read no more than this."""
    reading: dict[str, Any]
    """What besides a part's fingerprint decides its documents; plain values."""


def open_sources(data: DataConfig) -> list[Source]:
    """Find the parts of every source. Files are not read yet, but hub data sets are looked up.

    Raises:
        InputError: no source at all, or one that is missing, empty or of an unknown format.
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
    wanted = Wanted(
        config.documents or data.documents, config.text_field or data.text_field, config.where
    )
    reading = asdict(wanted)
    parts: list[Part]
    if config.path == "python-docs":
        if config.where:
            raise InputError("python-docs has no fields: leave `where` out for it")
        name, parts = "python-docs", [PythonDocs()]
    elif config.path.startswith("hub:"):
        name = config.path.removeprefix("hub:")
        part = hub.open_part(name, config.text_field, wanted)
        reading = {**asdict(part.wanted), "rows_per_document": part.found.rows_per_document}
        parts = [part]
    elif config.path == "-":
        name, parts = "standard-input", [_standard_input(wanted)]
    else:
        name = Path(config.path).name or Path(config.path).resolve().name
        files = _file_parts(config.path, wanted)
        if data.unreadable == "stop":
            for file in files:
                file.check()
        parts = [*files]
    return Source(config.name or name, tuple(parts), config.weight, config.max_characters, reading)


def _file_parts(given: str, wanted: Wanted) -> list[FilePart]:
    path = Path(given).expanduser()
    try:
        if path.is_dir():
            files = list(_search(path))
            if not files:
                raise InputError(f"{given} holds no file of a known format: {_known()}")
        elif path.exists():
            files = [path]
            if format_of(path) is None:
                raise InputError(f"{given} is of no known format: {_known()}")
        else:
            files = _match(path)
    except OSError as error:
        raise InputError(f"{given} cannot be read: {error.strerror}") from error
    return [
        FilePart(file.name, File(file.absolute(), str(file)), format_of(file) or "", wanted)
        for file in files
    ]


def _known() -> str:
    return f"{', '.join(READERS)}; text, also compressed, as {', '.join(COMPRESSIONS)}"


def _match(pattern: Path) -> list[Path]:
    """Files that fit a glob, and those in folders that fit it, sorted."""
    found = sorted(Path(match) for match in glob.glob(str(pattern), recursive=True))
    if not found:
        raise InputError(
            f"no such data: {pattern} (a file, a folder, a glob, - for standard input, "
            "python-docs, or hub:NAME)"
        )
    inside = [file for each in found if each.is_dir() for file in _search(each)]
    files = {*inside, *(each for each in found if each.is_file() and _belongs(each))}
    if not files:
        raise InputError(f"{pattern} fits no file of a known format: {_known()}")
    return sorted(files)


def _search(folder: Path) -> Iterator[Path]:
    """Files of known formats in a folder and those below it, sorted by path.

    A folder that `datasets` saved lists its files, and their order, itself. Hidden files and
    folders are left alone.
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
        elif _belongs(entry):
            yield entry


def passed_over(data: DataConfig) -> Counter[str]:
    """How many files of no known format lie in the folders that are read, by their suffix."""
    others: Counter[str] = Counter()
    for config in data.sources:
        folder = Path(config.path).expanduser()
        if not (config.is_on_disk and folder.is_dir()) or _saved_by_datasets(folder):
            continue
        taken = set(_search(folder))
        for file in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if not hidden and file.is_file() and file not in taken:
                others[file.suffix or file.name] += 1
    return others


def _saved_by_datasets(folder: Path) -> list[Path]:
    """The files of a data set that `save_to_disk` wrote here; none if it did not."""
    try:
        state = json.loads((folder / "state.json").read_text("utf-8"))
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def _belongs(file: Path) -> bool:
    """Whether a file that nobody named is data; other JSON than JSON lines is settings."""
    if format_of(file) != ".json":
        return format_of(file) is not None
    if file.name == "dataset_dict.json":
        return False
    try:
        return is_json_lines(File(file, str(file)))
    except InputError:
        return True  # reading it will say what is wrong


def _standard_input(wanted: Wanted) -> FilePart:
    file = File(_spooled(), "standard input")
    part = FilePart("standard-input", file, ".txt", wanted)
    if file.path.stat().st_size and is_json_lines(file):
        part = FilePart(part.name, file, ".jsonl", wanted)
    part.check()
    return part


@functools.cache
def _spooled() -> Path:
    """Standard input as a file that lasts as long as this process: it can be read only once."""
    if sys.stdin.isatty():
        raise InputError("nothing comes from standard input: pipe text in, or name a file")
    descriptor, name = tempfile.mkstemp(prefix="crammed-standard-input-")
    atexit.register(Path(name).unlink, missing_ok=True)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Path(name)
