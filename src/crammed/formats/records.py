"""Reads the records of one file as dicts: JSON lines, CSV and TSV tables, Parquet, Arrow.

There is one function for each format. Every fault in a file is an `InputError` that names the file
and the line or row.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from crammed.errors import InputError
from crammed.formats.lines import File, lines, read_faults

BATCH = 128  # rows turned into Python objects at once: books of a megabyte must fit in memory
_LARGEST_FIELD = 2**31 - 1  # characters in a CSV cell; the csv module's own limit is 131,072

Record = Mapping[str, Any]
Records = Iterator[tuple[str, Record]]
"""Each record with its place (file and line or row), for messages."""


def json_records(file: File) -> Records:
    """JSON objects, one on each line; blank lines are skipped."""
    for number, line in lines(file):
        if line.isspace():
            continue
        place = f"{file.shown}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{place}: not valid JSON; each line must be one whole object, as `jq -c` writes"
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{place}: a JSON {type(record).__name__}, not an object with fields")
        yield place, record


def csv_records(file: File) -> Records:
    """Rows of a comma-separated table, whose first line names the columns."""
    return _delimited_records(file, ",")


def tsv_records(file: File) -> Records:
    """Rows of a tab-separated table, whose first line names the columns."""
    return _delimited_records(file, "\t")


def _delimited_records(file: File, delimiter: str) -> Records:
    csv.field_size_limit(_LARGEST_FIELD)
    rows = csv.reader((line for _, line in lines(file)), delimiter=delimiter, strict=True)
    columns: list[str] = []
    try:
        for cells in rows:
            place = f"{file.shown}, line {rows.line_num}"
            if not cells:
                continue
            if not columns:
                columns = cells
                continue
            if len(cells) != len(columns):
                raise InputError(
                    f"{place}: {len(cells)} cells in a row, but {len(columns)} columns in the "
                    "first line"
                )
            yield place, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{file.shown}, line {rows.line_num}: a broken row ({error}); cells with quotation "
            'marks or line breaks must be quoted, as in "a ""word"" here"'
        ) from error


def parquet_records(file: File, fields: Sequence[str] | None = None) -> Records:
    """Rows of a Parquet file.

    Args:
        fields: the only fields to read, with dots for nested ones; None reads all.
    """
    with read_faults(file), pq.ParquetFile(file.path) as table:
        columns = None if fields is None else list(fields)
        yield from _row_records(file, table.iter_batches(BATCH, columns=columns))


def parquet_columns(file: File) -> list[str]:
    """Names of a Parquet file's columns."""
    with read_faults(file), pq.ParquetFile(file.path) as table:
        return list(table.schema_arrow.names)


def arrow_records(file: File, fields: Sequence[str] | None = None) -> Records:
    """Rows of an Arrow file in either layout: stream (which `datasets` writes) or file.

    Args:
        fields: as for `parquet_records`; a nested field is read with the whole of its column.
    """
    with read_faults(file), _open_arrow(file) as (names, batches):
        if fields is not None:
            roots = {field if field in names else field.partition(".")[0] for field in fields}
            names = [name for name in names if name in roots]
        slices = (
            batch.slice(at, BATCH).select(names)
            for batch in batches
            for at in range(0, batch.num_rows, BATCH)
        )
        yield from _row_records(file, slices)


def arrow_columns(file: File) -> list[str]:
    """Names of an Arrow file's columns."""
    with read_faults(file), _open_arrow(file) as (names, _):
        return names


@contextmanager
def _open_arrow(file: File) -> Iterator[tuple[list[str], Iterable[Any]]]:
    """Names of the columns, and the record batches."""
    with pa.memory_map(str(file.path)) as data:
        start = data.read(6)
        data.seek(0)
        if start == b"ARROW1":
            table = pa.ipc.open_file(data)
            batches = (table.get_batch(index) for index in range(table.num_record_batches))
        else:
            batches = table = pa.ipc.open_stream(data)
        yield list(table.schema.names), batches


def _row_records(file: File, batches: Iterable[Any]) -> Records:
    before = 0
    for batch in batches:
        batch.validate(full=True)  # offsets and UTF-8, which a damaged file has wrong
        for row, record in enumerate(batch.to_pylist(), before + 1):
            yield f"{file.shown}, row {row}", record
        before += batch.num_rows


def is_json_lines(file: File) -> bool:
    """Whether the first line that is not blank is a JSON object.

    Raises:
        InputError: the file cannot be read, or its first line is not UTF-8.
    """
    first = next((line for _, line in lines(file) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def look_up(record: Record, key: str) -> Any:
    """The value of a field; the dots of a key that is not itself a field lead to nested fields.

    Raises:
        KeyError: there is no such field.
    """
    if key in record:
        return record[key]
    outer, dot, inner = key.partition(".")
    nested = record.get(outer)
    if not dot or not isinstance(nested, Mapping):
        raise KeyError(key)
    return look_up(nested, inner)


def without_surrogates(text: str) -> str:
    r"""Text that UTF-8 can encode: JSON may escape half a character (``"\ud83d"``)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
