"""Reading the documents of one file: text, JSON lines, tables of text, Parquet and Arrow.

`READERS` has one function a format. Every fault in a file is an `InputError` that names the file
and, where there is one, the line or row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from crammed.config import TextDocuments
from crammed.errors import InputError
from crammed.formats.lines import COMPRESSIONS, File, faults, lines
from crammed.formats.records import (
    BATCH,
    delimited_records,
    json_records,
    look_up,
    rows_of,
    without_surrogates,
)


@dataclass(frozen=True)
class Wanted:
    """What a source takes from its files."""

    documents: TextDocuments = "blank-line"
    """What one document of plain text is."""
    text_field: str = "text"
    """Where the text of a record is; dots lead into nested objects."""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dotted field -> the values, as text, of which a record must have one."""

    def text_of(
        self, record: Mapping[str, Any], place: str, fields: Iterable[str] = ()
    ) -> str | None:
        """The text of one record; None if `where` drops it.

        Args:
            place: file and row, for messages.
            fields: all fields of the record, if `record` is only some of them.

        Raises:
            InputError: the field is missing or is no text.
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
            raise InputError(
                f"{place}: no field {self.text_field!r} (it has: {', '.join(fields or record)}); "
                "choose another with data.text_field=NAME"
            ) from None
        if text is None:
            return ""  # as many tables have it; the step `empty` drops and counts it
        if not isinstance(text, str):
            raise InputError(
                f"{place}: field {self.text_field!r} is {type(text).__name__}, not text; "
                "choose another with data.text_field=NAME"
            )
        return text


class DocumentReader(Protocol):
    """Yields the documents of a file in their order."""

    def __call__(self, file: File, wanted: Wanted, /) -> Iterator[str]: ...


def format_of(path: Path) -> str | None:
    """The key of `READERS` that reads this file (``a.jsonl.zst`` -> ``.jsonl``), or None."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    suffix = inner.suffix.lower()
    if suffix in _BINARY and inner != path:
        return None  # compressed within, never as a whole
    return suffix if suffix in READERS else None


def read_text(file: File, wanted: Wanted) -> Iterator[str]:
    """Documents of plain text, without the line break at their end."""
    gathered: list[str] = []
    for number, line in lines(file):
        if "\0" in line:
            raise InputError(f"{file.shown}, line {number}: a NUL character: is it a binary file?")
        if wanted.documents == "line":
            yield line.rstrip("\r\n")
        elif wanted.documents == "file" or line.strip():
            gathered.append(line)
        elif gathered:
            yield "".join(gathered).rstrip("\r\n")
            gathered = []
    if gathered:
        yield "".join(gathered).rstrip("\r\n")


def read_json_lines(file: File, wanted: Wanted) -> Iterator[str]:
    """Documents of JSON objects, one a line; blank lines are passed over."""
    for place, record in json_records(file):
        text = wanted.text_of(record, place)
        if text is not None:
            yield text if text.isascii() else without_surrogates(text)


def read_csv(file: File, wanted: Wanted) -> Iterator[str]:
    """Documents of comma-separated cells; the first row names the columns."""
    return _delimited(file, wanted, ",")


def read_tsv(file: File, wanted: Wanted) -> Iterator[str]:
    """Like `read_csv`, with tabs between the cells."""
    return _delimited(file, wanted, "\t")


def _delimited(file: File, wanted: Wanted, delimiter: str) -> Iterator[str]:
    for place, record in delimited_records(file, delimiter):
        text = wanted.text_of(record, place)
        if text is not None:
            yield text


def read_parquet(file: File, wanted: Wanted) -> Iterator[str]:
    """Documents of a Parquet file; reads the needed columns only."""
    with faults(file), pq.ParquetFile(file.path) as table:
        batches = table.iter_batches(BATCH, columns=_keys(wanted))
        yield from _rows(file, wanted, batches, table.schema_arrow.names)


def read_arrow(file: File, wanted: Wanted) -> Iterator[str]:
    """Documents of an Arrow file in either layout: stream (as `datasets` writes) or file."""
    with faults(file), pa.memory_map(str(file.path)) as data:
        start = data.read(6)
        data.seek(0)
        if start == b"ARROW1":
            table = pa.ipc.open_file(data)
            batches = (table.get_batch(index) for index in range(table.num_record_batches))
        else:
            batches = table = pa.ipc.open_stream(data)
        names = table.schema.names
        roots = {key if key in names else key.partition(".")[0] for key in _keys(wanted)}
        chosen = [name for name in names if name in roots]
        slices = (
            batch.slice(at, BATCH).select(chosen)
            for batch in batches
            for at in range(0, batch.num_rows, BATCH)
        )
        yield from _rows(file, wanted, slices, names)


def _keys(wanted: Wanted) -> list[str]:
    return [wanted.text_field, *wanted.where]


def _rows(file: File, wanted: Wanted, batches: Iterable[Any], names: list[str]) -> Iterator[str]:
    for row, record in enumerate(rows_of(batches), 1):
        text = wanted.text_of(record, f"{file.shown}, row {row}", names)
        if text is not None:
            yield text


_BINARY = (".parquet", ".arrow")
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
