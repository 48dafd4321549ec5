"""Reads the documents of one file, in any format: plain text, or one field of its records.

`READERS` has one function for each format.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath

from crammed.config import TextDocuments
from crammed.errors import InputError
from crammed.formats import lines
from crammed.formats.archives import members
from crammed.formats.blocks import LineBlock, line_blocks
from crammed.formats.lines import (
    STOP,
    CutShort,
    Faults,
    File,
    lines_of,
    open_bytes,
    open_lines,
    printable,
    read_faults,
)
from crammed.formats.markdown import text_of_markdown
from crammed.formats.plain import SMALL, choose_documents, divide
from crammed.formats.records import (
    Record,
    Records,
    arrow_columns,
    arrow_records,
    is_array,
    json_line_records,
    json_records,
    look_up,
    parquet_columns,
    shown_names,
    without_surrogates,
)
from crammed.formats.restructured import text_of_restructured
from crammed.formats.row_groups import RowGroups, row_group_records
from crammed.formats.sniff import format_of_text, is_json_text
from crammed.formats.streams import BUFFER, COMPRESSIONS, Tap
from crammed.formats.tables import csv_records, tabbed_records
from crammed.formats.warc import archived_pages
from crammed.formats.web import read_whole, text_of_page


class NoField(InputError):
    """A record lacks the field of text."""


@dataclass(frozen=True)
class ReadOptions:
    """What to read as documents."""

    documents: TextDocuments = "auto"
    """What counts as one document of plain text or of markup."""
    text_field: str = "text"
    """The field of a record that holds its text; dots lead to nested fields."""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields and their allowed values, as text such as ``true``; other records are dropped."""

    @property
    def fields(self) -> list[str]:
        """The fields of a record that are needed."""
        return [self.text_field, *self.where]

    def check(self, shown: str, format: str) -> None:
        """Check that documents of a format have fields if `where` filters by them.

        Raises:
            InputError: they have none; the message shows the file.
        """
        if self.where and format in _WITHOUT_FIELDS:
            raise InputError(
                f"{shown} has no fields to filter by, as {format} files never do: leave `where` "
                "out for this source"
            )

    def text_of(self, record: Record, place: str, columns: Iterable[str] = ()) -> str | None:
        """The text of one record; None if `where` drops it.

        Args:
            place: file and row, for messages.
            columns: names of all columns, if `record` holds only some of them; for messages.

        Raises:
            InputError: the field is missing (`NoField`) or does not hold text.
        """
        for key, allowed in self.where.items():
            try:
                value = look_up(record, key)
            except KeyError:
                return None
            written = {str(value)}
            if value is None or isinstance(value, bool):
                written.add(json.dumps(value))
            if written.isdisjoint(allowed):
                return None
        try:
            text = look_up(record, self.text_field)
        except KeyError:
            known = shown_names(columns or record)
            raise NoField(
                f"{place}: no field {self.text_field!r} (it has: {known}); choose another with "
                "data.text_field=NAME"
            ) from None
        if text is None:
            return ""  # common in tables; the cleaning step `empty` drops and counts it
        if not isinstance(text, str):
            what = "not UTF-8" if isinstance(text, bytes) else f"{type(text).__name__}, not text"
            raise InputError(
                f"{place}: field {self.text_field!r} is {what}; convert it, or choose another with "
                "data.text_field=NAME"
            )
        if len(text) > lines.LARGEST:
            raise InputError(f"{place}: a document of more than {lines.LARGEST:,} characters")
        return text if text.isascii() else without_surrogates(text)


DocumentReader = Callable[[File, ReadOptions, Faults], Iterator[str]]
"""Yields a file's documents in order; `Faults` says what to do about damaged records."""


def format_of(path: str | PurePath) -> str | None:
    """The key of `READERS` that reads this file (``a.jsonl.zst`` -> ``.jsonl``), or None."""
    inner, suffix = split_suffix(path)
    is_compressed = suffix.lower() in COMPRESSIONS
    if is_compressed:
        suffix = split_suffix(inner)[1]
    suffix = suffix.lower()
    suffix = _OTHER_SUFFIXES.get(suffix, suffix)
    if suffix in BINARY and is_compressed and suffix != ".tar":
        return None  # compressed internally, never as a whole
    return sys.intern(suffix) if suffix in READERS else None  # one string for all files


def split_suffix(path: str | PurePath) -> tuple[str, str]:
    """The name of a file without its last suffix, and that suffix or an empty string."""
    name = os.path.basename(path)
    at = name.rfind(".")
    return (name[:at], name[at:]) if 0 < at < len(name) - 1 else (name, "")


def kind_of(path: str | PurePath) -> str:
    """How a file of an unknown format is counted: by its suffix, or as a file without one."""
    return printable(split_suffix(path)[1]) or "without a suffix"


def has_suffix(path: str | PurePath) -> bool:
    """Whether a file's name says what it is, or might do so."""
    inner, suffix = split_suffix(path)
    return suffix.lower() not in ("", *COMPRESSIONS) or split_suffix(inner)[1] != ""


def is_about_data(path: str | PurePath, format: str) -> bool:
    """Whether a file beside records describes them, such as README.md and LICENSE."""
    return format in (".md", ".rst", ".html") or (format == ".txt" and not has_suffix(path))


# ---- text


def _read_text(file: File, options: ReadOptions, faults: Faults) -> Iterator[str]:
    documents = choose_documents(file) if options.documents == "auto" else options.documents
    with open_lines(file, plain=True) as stream:
        yield from divide(lines_of(stream, file), file, documents, faults)


def _read_markup(
    clean: Callable[[str], str], file: File, options: ReadOptions, faults: Faults
) -> Iterator[str]:
    """The text of a file of markup, as one document unless `documents` says otherwise."""
    with open_lines(file, plain=True) as stream:
        texts = list(divide(lines_of(stream, file), file, "file", faults))
    cleaned = "".join(map(clean, texts))
    if options.documents in ("auto", "file"):
        yield cleaned
    else:
        numbered = lines_of(io.BytesIO(cleaned.encode()), file)
        yield from divide(numbered, file, options.documents, faults)


def _read_html(file: File, options: ReadOptions, faults: Faults) -> Iterator[str]:
    yield text_of_page(read_whole(file), file.shown)


# ---- records


def _of_records(
    records: Callable[[File, ReadOptions, Faults], Records],
    columns: Callable[[File], Iterable[str]] = lambda _: (),
) -> DocumentReader:
    """A reader of the texts of records; `columns` names all columns of a table for messages."""

    def read(file: File, options: ReadOptions, faults: Faults) -> Iterator[str]:
        yield from texts_of(records(file, options, faults), options, faults, columns(file))

    return read


def lacks_field(file: File, key: str) -> NoField | None:
    """What is wrong if the first object of a JSON file has no such field."""
    try:
        next(texts_of(json_records(file), ReadOptions(text_field=key), STOP), None)
    except NoField as error:
        return error
    except (InputError, OSError):
        pass  # reading it will report what is wrong
    return None


def texts_of(
    records: Records, options: ReadOptions, faults: Faults, columns: Iterable[str] = ()
) -> Iterator[str]:
    """The texts of those records that `where` keeps; `columns` as for `ReadOptions.text_of`."""
    for place, record in records:
        try:
            text = options.text_of(record, place, columns)
        except InputError as error:
            faults.found(error)
        else:
            if text is not None:
                yield text


# ---- archives


def _read_members(archive: str, file: File, options: ReadOptions, faults: Faults) -> Iterator[str]:
    read, has_text = False, False
    lacking: NoField | None = None  # of the first JSON file without the field of text
    without_field = ""
    for member in members(file, archive, faults):
        shown = printable(member.name)
        inner = File(Path(member.name), f"{file.shown}/{shown}", member.stream)
        try:
            format, head = _format_of_member(inner)
            if format is None:
                faults.ignored[kind_of(member.name)] += 1
                continue
            if options.where and is_about_data(member.name, format):
                faults.ignored["without fields for `where`"] += 1
                continue
            read = True
            if format in BINARY:
                raise InputError(f"{inner.shown} cannot be read inside an archive: unpack it")
            if format == ".json" and (error := lacks_field(head, options.text_field)) is not None:
                lacking = lacking or error
                without_field = without_field or f".json without the field of text, such as {shown}"
                faults.ignored[without_field] += 1
                continue
            has_text |= not is_about_data(member.name, format)
            own = options
            if format == ".txt" and options.documents == "auto":
                own = replace(options, documents="file" if member.bytes < SMALL else "blank-line")
            yield from read_documents(inner, format, own, faults)
        except InputError as error:
            faults.found(error)
    if lacking is not None and not has_text:
        faults.found(lacking)
    if not read:
        what = "with fields for `where`" if options.where else "of a known format"
        raise InputError(f"{file.shown} holds no file {what} that can be read in it")


def _format_of_member(file: File) -> tuple[str | None, File]:
    """The format of a file in an archive, and its first bytes if they had to be looked at."""
    format, begin = format_of(file.path), b""
    if format == ".json" or (format is None and not has_suffix(file.path)):
        assert file.stream is not None
        with read_faults(file):
            stored = File(file.path, "", _stream_of(file.stream.peek(BUFFER)))
        with suppress(InputError), open_bytes(stored) as content:  # reading it will report it
            begin = content.peek(BUFFER)
        if format is None:
            format = format_of_text(begin, "")
        elif not is_json_text(begin.decode(errors="replace").removeprefix("\ufeff")):
            format = None
    return format, File(Path("head.json"), file.shown, _stream_of(begin))


def _stream_of(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def read_documents(file: File, format: str, options: ReadOptions, faults: Faults) -> Iterator[str]:
    """The documents of a file.

    Args:
        format: its key in `READERS`.

    Raises:
        InputError: the file is damaged, and the fault is not to be skipped or leaves nothing.
    """
    options.check(file.shown, format)
    own, found = Faults(faults.skip), False
    try:
        for text in READERS[format](file, options, own):
            found = True
            yield text
    except CutShort as error:
        if not found:
            raise
        own.found(error)
    except GeneratorExit:  # enough has been read
        faults.add(own)
        raise
    if own.records and not found:
        raise InputError(own.first)
    faults.add(own)


# ---- pieces of a file


def cut_into_blocks(
    file: File, format: str, options: ReadOptions, size: int, taps: list[Tap]
) -> Iterator[LineBlock] | None:
    """The file in blocks of about `size` bytes to read apart; None if it must be read as a whole.

    Args:
        format: its key in `READERS`.
        options: whose `documents` is not auto.
        taps: as for `open_bytes`.
    """
    plain = format == ".txt"
    if plain:
        if options.documents == "file":
            return None
    elif format not in JSON or is_array(file):
        return None
    by_paragraph = plain and options.documents == "blank-line"
    return line_blocks(file, size, to_blank_line=by_paragraph, plain=plain, taps=taps)


def read_block(
    block: LineBlock | RowGroups, file: File, format: str, options: ReadOptions, faults: Faults
) -> Iterator[str]:
    """The documents of a block from `cut_into_blocks`, or of row groups."""
    if isinstance(block, RowGroups):
        records = row_group_records(file, options.fields, faults, block)
        return texts_of(records, options, faults, parquet_columns(file))
    numbered = lines_of(io.BytesIO(block.data), file, block.first_line)
    if format == ".txt":
        return divide(numbered, file, options.documents, faults)
    return texts_of(json_line_records(numbered, file, faults), options, faults)


BINARY = (".parquet", ".arrow", ".zip", ".tar")
_WITHOUT_FIELDS = (".txt", ".md", ".rst", ".html", ".warc")
JSON = (".jsonl", ".ndjson", ".json")
READERS: dict[str, DocumentReader] = {
    ".txt": _read_text,
    ".md": partial(_read_markup, text_of_markdown),
    ".rst": partial(_read_markup, text_of_restructured),
    ".html": _read_html,
    ".warc": lambda file, _, faults: archived_pages(file, faults),
    **dict.fromkeys(JSON, _of_records(lambda file, _, faults: json_records(file, faults))),
    ".csv": _of_records(lambda file, how, faults: csv_records(file, faults, how.text_field)),
    ".tsv": _of_records(lambda file, how, faults: tabbed_records(file, faults, how.text_field)),
    ".parquet": _of_records(
        lambda file, how, faults: row_group_records(file, how.fields, faults), parquet_columns
    ),
    ".arrow": _of_records(lambda file, how, _: arrow_records(file, how.fields), arrow_columns),
    ".zip": partial(_read_members, ".zip"),
    ".tar": partial(_read_members, ".tar"),
}
_OTHER_SUFFIXES = {
    ".text": ".txt",
    **dict.fromkeys((".markdown", ".mdown"), ".md"),
    **dict.fromkeys((".htm", ".xhtml"), ".html"),
    ".wet": ".warc",
    **dict.fromkeys((".tgz", ".tbz2", ".txz", ".tzst"), ".tar"),
}
