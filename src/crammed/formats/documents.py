"""Reads the documents of one file, in any format: plain text, or one field of its records.

`READERS` has one function for each format. Every fault in a file is an `InputError` that names the
file and, if possible, the line or row.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from crammed.config import TextDocuments
from crammed.errors import InputError
from crammed.formats.blocks import LineBlock, line_blocks
from crammed.formats.lines import COMPRESSIONS, File, Tap, lines, lines_of
from crammed.formats.records import (
    Record,
    Records,
    arrow_columns,
    arrow_records,
    csv_records,
    is_array,
    json_line_records,
    json_records,
    look_up,
    parquet_columns,
    parquet_records,
    tsv_records,
    without_surrogates,
)

_MOST_SHOWN = 500  # characters of a list of names


@dataclass(frozen=True)
class ReadOptions:
    """What to read as documents."""

    documents: TextDocuments = "blank-line"
    """What counts as one document of plain text."""
    text_field: str = "text"
    """The field of a record that holds its text; dots lead to nested fields."""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields and their allowed values, as text; records without one of these are dropped."""

    @property
    def fields(self) -> list[str]:
        """The fields of a record that are needed."""
        return [self.text_field, *self.where]

    def text_of(self, record: Record, place: str, columns: Iterable[str] = ()) -> str | None:
        """The text of one record; None if `where` drops it.

        Args:
            place: file and row, for messages.
            columns: names of all columns, if `record` holds only some of them; for messages.

        Raises:
            InputError: the field is missing or does not hold text.
        """
        for key, allowed in self.where.items():
            try:
                if str(look_up(record, key)) not in allowed:
                    return None
            except KeyError:
                return None
        try:
            text = look_up(record, self.text_field)
        except KeyError:
            names = " ".join(", ".join(columns or record).split())  # without line breaks
            raise InputError(
                f"{place}: no field {self.text_field!r} (it has: {names[:_MOST_SHOWN]}); choose "
                "another with data.text_field=NAME"
            ) from None
        if text is None:
            return ""  # common in tables; the cleaning step `empty` drops and counts it
        if not isinstance(text, str):
            raise InputError(
                f"{place}: field {self.text_field!r} is {type(text).__name__}, not text; "
                "choose another with data.text_field=NAME"
            )
        return text if text.isascii() else without_surrogates(text)


class DocumentReader(Protocol):
    """Yields the documents of a file in order."""

    def __call__(self, file: File, options: ReadOptions, /) -> Iterator[str]: ...


def format_of(path: Path) -> str | None:
    """The key of `READERS` that reads this file (``a.jsonl.zst`` -> ``.jsonl``), or None."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    suffix = inner.suffix.lower()
    if suffix in BINARY and inner != path:
        return None  # compressed internally, never as a whole
    return suffix if suffix in READERS else None


def read_text(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of plain text, without line breaks at their end."""
    return _text_documents(lines(file), file, options)


def _text_documents(
    numbered: Iterable[tuple[int, str]], file: File, options: ReadOptions
) -> Iterator[str]:
    gathered: list[str] = []
    for number, line in numbered:
        if "\0" in line:
            raise InputError(f"{file.shown}, line {number}: a NUL character: is it a binary file?")
        if options.documents == "line":
            yield line.rstrip("\r\n")
        elif options.documents == "file" or line.strip():
            gathered.append(line)
        elif gathered:
            yield "".join(gathered).rstrip("\r\n")
            gathered = []
    if gathered:
        yield "".join(gathered).rstrip("\r\n")


def read_json_lines(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of JSON objects, one per line or in an array."""
    return _texts(json_records(file), options)


def cut_into_blocks(
    file: File, format: str, options: ReadOptions, size: int, taps: list[Tap]
) -> Iterator[LineBlock] | None:
    """The file in blocks of about `size` bytes to read apart; None if it must be read as a whole.

    Args:
        format: its key in `READERS`.
        taps: as for `open_bytes`.
    """
    if format == ".txt":
        if options.documents == "file":
            return None
    elif READERS[format] is not read_json_lines or is_array(file):
        return None
    by_paragraph = format == ".txt" and options.documents == "blank-line"
    return line_blocks(file, size, to_blank_line=by_paragraph, taps=taps)


def read_block(block: LineBlock, file: File, format: str, options: ReadOptions) -> Iterator[str]:
    """The documents of a block from `cut_into_blocks`."""
    numbered = lines_of(io.BytesIO(block.data), file, block.first_line)
    if format == ".txt":
        return _text_documents(numbered, file, options)
    return _texts(json_line_records(numbered, file), options)


def read_csv(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of a comma-separated table."""
    return _texts(csv_records(file), options)


def read_tsv(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of a tab-separated table."""
    return _texts(tsv_records(file), options)


def read_parquet(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of a Parquet file."""
    yield from _texts(parquet_records(file, options.fields), options, parquet_columns(file))


def read_arrow(file: File, options: ReadOptions) -> Iterator[str]:
    """Documents of an Arrow file."""
    yield from _texts(arrow_records(file, options.fields), options, arrow_columns(file))


def _texts(records: Records, options: ReadOptions, columns: Iterable[str] = ()) -> Iterator[str]:
    for place, record in records:
        text = options.text_of(record, place, columns)
        if text is not None:
            yield text


BINARY = (".parquet", ".arrow")
READERS: dict[str, DocumentReader] = {
    ".txt": read_text,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_lines,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
