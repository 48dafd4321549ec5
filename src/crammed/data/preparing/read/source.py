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
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from crammed.config import DataConfig, SourceConfig, TextDocuments
from crammed.data.preparing.read.part import FilePart, Part
from crammed.data.preparing.read.python_docs import PythonDocs
from crammed.data.preparing.read.search import Found, Wanted, find_files
from crammed.data.preparing.read.task_texts import TrainingTexts, open_training_texts
from crammed.errors import InputError
from crammed.files.addresses import without_secrets
from crammed.files.faults import disk_faults
from crammed.files.folders import expanded
from crammed.files.scratch import scratch_folder
from crammed.formats import hub
from crammed.formats.documents import ReadOptions, format_of, is_about_data
from crammed.formats.lines import File, printable
from crammed.formats.plain import SMALL, choose_documents
from crammed.formats.sniff import format_by_content
from crammed.formats.web import require_web
from crammed.quantity import counted

_MOST_LISTED = 5
"""Files, or kinds of them, that a line names."""


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
    """Number of its files that are of other formats, by suffix, and of folders left out."""
    without_field: tuple[str, ...] = ()
    """Names of JSON files in its folders that are left out for want of a field of text."""
    empty: tuple[str, ...] = ()
    """Names of files that are left out because there is nothing in them."""


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
            f"text: {listed(without)}"
        )
    if empty := [name for source in sources for name in source.empty]:
        yield f"ignoring {counted(len(empty), 'empty file')}: {listed(empty)}"
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
        *values, last = (kind for kind in ("blank-line", "line", "file") if {kind} != {*chosen})
        yield f"{', '.join(words)}; data.documents={', '.join(values)} or {last} changes it"


def ignored_files(ignored: Counter[str]) -> str:
    """The files of unknown formats in words, given their number by suffix."""
    shown = [f"{count:,} {suffix}" for suffix, count in ignored.most_common()]
    line = f"ignoring files of other formats: {listed(shown)}"
    about = [
        suffix
        for suffix, count in ignored.most_common()
        if is_about_data(f"a{suffix}", format := format_of(f"a{suffix}") or "")
        and (count > 1 or format == ".html")  # more than a read-me
    ]
    if about:
        line += (
            f"; {', '.join(about)} files beside records are taken for descriptions of them: to "
            f"read them, name them as {' or '.join(f'FOLDER/**/*{suffix}' for suffix in about)}"
        )
    return line


def listed(names: Sequence[str]) -> str:
    """The first few names, for a line."""
    return ", ".join([*names[:_MOST_LISTED], *["..."] * (len(names) > _MOST_LISTED)])


def check_here(data: DataConfig, *more: SourceConfig) -> None:
    """Open the sources, and more of them, that are at no address: copying may take hours.

    Raises:
        InputError: as `open_sources`.
    """
    here = tuple(source for source in (*data.sources, *more) if not source.is_remote)
    if here or not data.sources:
        open_sources(data.model_copy(update={"sources": here}))


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
    skip = data.unreadable == "skip"
    wanted = Wanted(config.format or data.format, options.text_field, skip)
    reading = {**asdict(options), "format": wanted.format}
    found = Found()
    parts: list[Part]
    empty: list[str] = []
    if config.suite is not None:
        name, of_tasks = open_training_texts(config.suite, config.path)
        parts = [*of_tasks]
    elif config.is_remote:  # `fetched` puts copies in place of addresses
        raise InputError(
            f"{without_secrets(config.path)}: this command reads files on this machine: download "
            "it, and name the file"
        )
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
        reading["several"] = _are_several(found)
        are_empty = [file.is_empty() for file in files]
        if not all(are_empty):  # else reading them says so
            empty = [file.name for file, is_empty in zip(files, are_empty, strict=True) if is_empty]
            files = [file for file, is_empty in zip(files, are_empty, strict=True) if not is_empty]
        if not skip:
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
        tuple(empty),
    )


def _file_parts(name: str, options: ReadOptions, found: Found) -> list[FilePart]:
    root = _root(name)
    above = os.path.join(root.absolute(), "")
    shown = root.resolve().name
    if any(format in (".html", ".warc") for _, format in found.files):
        require_web()
    several = _are_several(found)
    chosen = _chosen(options)
    parts = (
        FilePart(file, printable(_below(file, above, shown)), format, options)
        for file, format in found.files
    )
    return [_with_documents(part, chosen, several=several) for part in parts]


def _are_several(found: Found) -> bool:
    """Whether there are several files of plain text, which changes what a small one is."""
    return sum(format == ".txt" for _, format in found.files) > 1


def _chosen(options: ReadOptions) -> dict[TextDocuments, ReadOptions]:
    """The options with each choice of what a document is, to be shared by all parts."""
    return {choice: replace(options, documents=choice) for choice in get_args(TextDocuments)}


def _with_documents(
    part: FilePart, chosen: Mapping[TextDocuments, ReadOptions], *, several: bool
) -> FilePart:
    """The part with a choice of what a document is, if it is plain text and that is open."""
    if part.format != ".txt" or part.options.documents != "auto":
        return part
    documents: TextDocuments = "blank-line"
    with suppress(InputError, OSError):  # reading it will report what is wrong
        small = part.check().st_size < SMALL
        documents = "file" if several and small else choose_documents(part.file)
    return replace(part, options=chosen[documents])


def _root(source: str) -> Path:
    """The path of a source up to the first part with a wildcard."""
    root = expanded(source)
    while glob.has_magic(str(root)):
        root = root.parent
    return root


def _below(file: str, above: str, shown: str) -> str:
    """The path that messages show: it begins at the source's folder, whatever leads there."""
    if not file.startswith(above):
        return os.path.basename(file)
    return os.path.join(shown, file[len(above) :])


def _standard_input(options: ReadOptions, wanted: Wanted) -> FilePart:
    file = File(_spooled(), "standard input")
    format: str | None = f".{wanted.format}"
    if wanted.format == "auto":
        format = format_by_content(file, options.text_field)
    if format is None:
        raise InputError(
            "standard input is of no known format: is it a binary file? Name its format with "
            "data.format=txt or the like"
        )
    part = FilePart(str(file.path), file.shown, format, options)
    part.check()
    return _with_documents(part, _chosen(options), several=False)


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
    another = f"set TMPDIR to a folder on a larger disk than that of {spooled.parent.parent}"
    with disk_faults(spooled, another), spooled.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return spooled
