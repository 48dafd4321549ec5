"""Where documents come from: files, folders, globs, standard input, `python-docs` and the hub.

A source is a list of parts, such as files. Every part yields its documents in the same order each
time, and has a fingerprint that identifies its content.
"""

from __future__ import annotations

import atexit
import functools
import glob
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, get_args

from crammed.config import DataConfig, SourceConfig, TextDocuments
from crammed.data.preparing.read.python_docs import PythonDocs
from crammed.data.preparing.read.search import Found, Wanted, find_files
from crammed.data.preparing.read.task_texts import TrainingTexts, open_training_texts
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.hashes import sha256
from crammed.files.scratch import scratch_folder
from crammed.formats import hub
from crammed.formats.blocks import LineBlock
from crammed.formats.documents import (
    BINARY,
    WITHOUT_FIELDS,
    ReadOptions,
    cut_into_blocks,
    read_block,
    read_documents,
)
from crammed.formats.lines import STOP, Faults, File, printable, read_faults
from crammed.formats.plain import SMALL, choose_documents
from crammed.formats.sniff import format_by_content
from crammed.formats.streams import COMPRESSIONS, Tap
from crammed.formats.web import require_web
from crammed.quantity import counted

_MOST_LISTED = 5
"""Files, or kinds of them, that a line names."""
_COMPRESSED = 4
"""About how many bytes of text there are in a byte of a compressed file."""


class SourceChanged(InputError):
    """A part has changed since reading it began."""


class Part(Protocol):
    """A series of documents that is read in one go, such as a file; can be pickled."""

    @property
    def name(self) -> str:
        """Its name in reports; for a file, its name without the folder."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content, without the names of folders on this machine."""
        ...

    def state(self) -> dict[str, Any]:
        """What changes on this machine whenever the content does; quick to find out."""
        ...

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        """The documents, always in the same order.

        Args:
            faults: what to do about damaged records.

        Raises:
            InputError: the content is damaged or unexpected; names the file and the line.
        """
        ...


@dataclass(frozen=True, slots=True)
class FilePart:
    """The documents of one file; there may be millions of these, so they hold little."""

    path: str
    shown: str
    """What messages call it."""
    format: str
    """Its key in `READERS`."""
    options: ReadOptions
    """Whose `documents` is not auto for plain text."""

    @property
    def name(self) -> str:
        return printable(os.path.basename(self.path))

    @property
    def file(self) -> File:
        return File(Path(self.path), self.shown)

    def fingerprint(self) -> dict[str, Any]:
        size, file = self.check().st_size, self.file
        with read_faults(file):
            return {"name": self.name, "bytes": size, "sha256": sha256(file.path)}

    def state(self) -> dict[str, Any]:
        now = self.check()
        times = {"modified": now.st_mtime_ns, "changed": now.st_ctime_ns}
        return {"device": now.st_dev, "inode": now.st_ino, "bytes": now.st_size, **times}

    def documents(self, faults: Faults = STOP) -> Iterator[str]:
        self.check()
        return read_documents(self.file, self.format, self.options, faults)

    @property
    def is_binary(self) -> bool:
        """Whether the file is a table of a binary format."""
        return self.format in BINARY

    def size(self) -> int:
        """Its bytes; 0 if there is no file."""
        try:
            return os.stat(self.path).st_size
        except OSError:  # reading it will report what is wrong
            return 0

    def text_bytes(self) -> int:
        """About how many bytes of text the file holds, by its size."""
        packed = self.is_binary or os.path.splitext(self.path)[1].lower() in COMPRESSIONS
        return self.size() * (_COMPRESSED if packed else 1)

    def blocks(self, size: int, taps: list[Tap]) -> Iterator[LineBlock] | None:
        """As `cut_into_blocks`."""
        self.check()
        return cut_into_blocks(self.file, self.format, self.options, size, taps)

    def documents_of(self, block: LineBlock, faults: Faults = STOP) -> Iterator[str]:
        """The documents of one of its blocks."""
        return read_block(block, self.file, self.format, self.options, faults)

    def check(self) -> os.stat_result:
        """Check what can be checked without reading the file, and return what the system knows.

        Raises:
            InputError: the file is gone, empty or not a regular file, or `where` is used with plain
                text.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise InputError(f"{self.shown} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{self.shown} is not a regular file: save its text in one")
        if found.st_size == 0:
            raise InputError(f"{self.shown} is empty")
        if self.options.where and self.format in WITHOUT_FIELDS:
            raise InputError(
                f"{self.shown} is plain text, whose documents have no fields: leave `where` "
                "out for it"
            )
        return found


@dataclass(frozen=True)
class Source:
    """One entry of `data.sources`."""

    name: str
    parts: tuple[Part, ...]
    weight: float
    """How often each document is packed."""
    share: float | None
    """Its part of the text, which sets the weight; relative to those of the other sources."""
    max_characters: int | None
    """Begin no further document once this many have been read; None for no limit."""
    reading: dict[str, Any]
    """What determines a part's documents besides its fingerprint, as plain values."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Number of files in its folders that are of other formats, by suffix."""
    without_field: tuple[str, ...] = ()
    """Names of JSON files in its folders that are left out for want of a field of text."""


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


_AS = {
    "file": "taken as one document",
    "blank-line": "cut into documents at blank lines",
    "line": "cut into documents at line ends",
}


def describe_reading(sources: Sequence[Source], data: DataConfig) -> Iterator[str]:
    """What a user may not expect of how sources are read, in a line each."""
    ignored: Counter[str] = sum((source.ignored for source in sources), Counter())
    if ignored:
        yield ignored_files(ignored)
    of_tasks = [p.task for s in sources for p in s.parts if isinstance(p, TrainingTexts)]
    if of_tasks:
        yield f"training texts of {', '.join(of_tasks)}, without their labels"
    without = [name for source in sources for name in source.without_field]
    if without:
        yield (
            f"ignoring {counted(len(without), 'JSON file')} whose first record lacks the field of "
            f"text: {_listed(without)}"
        )
    chosen = Counter(
        part.options.documents
        for source, config in zip(sources, data.sources, strict=True)
        for part in source.parts
        if isinstance(part, FilePart) and part.format == ".txt"
        if (config.documents or data.documents) == "auto"
    )
    if chosen:
        words = [
            f"{counted(count, 'text file')} {_AS[kind]}{' each' * (kind == 'file' and count > 1)}"
            for kind, count in chosen.most_common()
        ]
        yield f"{', '.join(words)}; data.documents=blank-line, line or file changes it"


def ignored_files(ignored: Counter[str]) -> str:
    """The files of unknown formats in words, given their number by suffix."""
    shown = [f"{count:,} {suffix}" for suffix, count in ignored.most_common()]
    return f"ignoring files of other formats: {_listed(shown)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_MOST_LISTED], *["..."] * (len(names) > _MOST_LISTED)])


def check_text(data: DataConfig) -> None:
    """Read the first document of each source on disk, to find a wrong field at once.

    Raises:
        InputError: as `open_sources` and `Part.documents`.
    """
    on_disk = tuple(source for source in data.sources if source.is_on_disk)
    if not on_disk or data.unreadable != "stop":
        return
    for source in open_sources(data.model_copy(update={"sources": on_disk})):
        next(source.parts[0].documents(), None)


def _open(config: SourceConfig, data: DataConfig) -> Source:
    options = ReadOptions(
        config.documents or data.documents, config.text_field or data.text_field, config.where
    )
    reading = asdict(options)
    wanted = Wanted(config.format or data.format, options.text_field)
    found = Found()
    parts: list[Part]
    if config.suite is not None:
        name, of_tasks = open_training_texts(config.suite, config.path)
        parts = [*of_tasks]
    elif config.path == "python-docs":
        if config.where:
            raise InputError("python-docs has no fields: leave `where` out for it")
        name, parts = "python-docs", [PythonDocs()]
    elif config.path.startswith("hub:"):
        name = config.path.removeprefix("hub:")
        shards = hub.open_parts(name, config.text_field, options)
        together = shards[0].dataset.rows_per_document
        reading = {**asdict(shards[0].options), "rows_per_document": together}
        parts = [*shards]
    elif config.path == "-":
        name, parts = "standard-input", [_standard_input(options, wanted)]
    else:
        name = printable(Path(config.path).name or Path(config.path).resolve().name)
        found = find_files(config.path, wanted)
        files = _file_parts(config.path, options, found)
        reading["several"] = _are_several(files)
        if data.unreadable == "stop":
            for file in files:
                file.check()
        parts = [*files]
    return Source(
        config.name or name,
        tuple(parts),
        config.weight,
        config.share,
        config.max_characters,
        reading,
        found.ignored,
        tuple(found.without_field),
    )


def _file_parts(name: str, options: ReadOptions, found: Found) -> list[FilePart]:
    root = _root(name)
    shown = Path(root.resolve().name)
    parts = [
        FilePart(str(file.absolute()), printable(_below(file, root, shown)), format, options)
        for file, format in found.files
    ]
    if any(part.format in (".html", ".warc") for part in parts):
        require_web()
    several = _are_several(parts)
    chosen = _chosen(options)
    return [_with_documents(part, chosen, several=several) for part in parts]


def _are_several(files: Sequence[FilePart]) -> bool:
    """Whether there are several files of plain text, which changes what a small one is."""
    return sum(file.format == ".txt" for file in files) > 1


def _chosen(options: ReadOptions) -> dict[TextDocuments, ReadOptions]:
    """The options with each choice of what a document is, to be shared by all parts."""
    return {choice: replace(options, documents=choice) for choice in get_args(TextDocuments)}


def _with_documents(
    part: FilePart, chosen: Mapping[TextDocuments, ReadOptions], *, several: bool
) -> FilePart:
    """The part with a choice of what one document of it is, if it is plain text and that is open.

    Args:
        chosen: the options with each choice.
        several: whether it is one of several such files, so that a small one is one document.
    """
    if part.format != ".txt" or part.options.documents != "auto":
        return part
    documents: TextDocuments = "blank-line"
    with suppress(InputError, OSError):  # reading it will report what is wrong
        small = part.check().st_size < SMALL
        documents = "file" if several and small else choose_documents(part.file)
    return replace(part, options=chosen[documents])


def _root(source: str) -> Path:
    """The path of a source up to the first part with a wildcard."""
    root = Path(source).expanduser()
    while glob.has_magic(str(root)):
        root = root.parent
    return root


def _below(file: Path, root: Path, shown: Path) -> Path:
    """The path that messages show: it begins at the source's folder, whatever leads there."""
    if root == file or not file.is_relative_to(root):
        return Path(file.name)
    return shown / file.relative_to(root)


def _standard_input(options: ReadOptions, wanted: Wanted) -> FilePart:
    file = File(_spooled(), "standard input")
    part = FilePart(str(file.path), file.shown, ".txt", options)
    part.check()
    format = f".{wanted.format}"
    if wanted.format == "auto":
        found = format_by_content(file, options.text_field)
        if found is None:
            raise InputError(
                "standard input is of no known format: is it a binary file? Name its format with "
                "data.format=txt or the like"
            )
        format = found
    return _with_documents(replace(part, format=format), _chosen(options), several=False)


@functools.cache
def _spooled() -> Path:
    """Standard input, which can be read only once, as a file kept until this process ends."""
    # The command line puts the null device in place of a standard input that is closed.
    if sys.stdin is None or getattr(sys.stdin, "name", None) == os.devnull:
        raise InputError("standard input is closed: pipe text into it, or name a file")
    if sys.stdin.isatty():
        raise InputError("standard input is a terminal: pipe text into it, or name a file")
    scratch = ExitStack()
    atexit.register(scratch.close)
    spooled = scratch.enter_context(scratch_folder()) / "standard-input"
    with disk_faults(spooled), spooled.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return spooled
