"""Reads the records of one file as dicts: JSON, CSV and TSV tables, Parquet, Arrow.

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
from crammed.formats.json_array import array_objects
from crammed.formats.lines import File, lines, lines_of, open_bytes, read_faults, skip_space

BATCH = 128  # rows made into Python objects at a time: books of a megabyte must fit in memory
_LARGEST_FIELD = 2**31 - 1  # characters in a CSV cell; the csv module's own limit is 131,072

Record = Mapping[str, Any]
Records = Iterator[tuple[str, Record]]
"""Each record with its place (file and line or row), for messages."""


def json_records(file: File) -> Records:
    """JSON objects: one per line, with blank lines ignored, or those of an array in any layout."""
    with open_bytes(file) as stream:  # once, since a pipe cannot be read again
        ended, first = skip_space(stream)
        if first == b"[":
            for place, text in array_objects(stream, file):
                yield place, _json_object(text, place, "an array must hold whole objects")
            return
        yield from json_line_records(lines_of(stream, file, ended + 1), file)


def json_line_records(numbered: Iterable[tuple[int, str]], file: File) -> Records:
    """JSON objects, one in each numbered line; blank lines are ignored."""
    for number, line in numbered:
        if not line.isspace():
            place = f"{file.shown}, line {number}"
            rule = "each line must be one whole object, as `jq -c` writes"
            yield place, _json_object(line, place, rule)


def is_array(file: File) -> bool:
    """Whether a JSON file is one array instead of lines."""
    with open_bytes(file) as stream:
        return skip_space(stream)[1] == b"["


def is_json(file: File) -> bool:
    """Whether the file is an array of JSON objects, or its first line is a JSON object.

    Raises:
        InputError: the file cannot be read, or its first line is not UTF-8.
    """
    with open_bytes(file) as stream:
        _, begin = skip_space(stream)
    if begin == b"[":
        try:
            return next(json_records(file), None) is not None
        except InputError:
            return False
    first = next((line for _, line in lines(file) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _json_object(text: str, place: str, rule: str) -> Record:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not valid JSON; {rule}") from error
    if not isinstance(record, dict):
        raise InputError(f"{place}: a JSON {type(record).__name__}, not an object with fields")
    return record


def csv_records(file: File) -> Records:
    """Rows of a comma-separated table, whose first line names the columns."""
    csv.field_size_limit(_LARGEST_FIELD)
    rows = csv.reader((line for _, line in lines(file)), strict=True)
    try:
        yield from _named_cells(file, ((rows.line_num, cells) for cells in rows))
    except csv.Error as error:
        raise InputError(
            f"{file.shown}, line {rows.line_num}: a broken row ({error}); cells with quotation "
            'marks or line breaks must be quoted, as in "a ""word"" here"'
        ) from error


def tsv_records(file: File) -> Records:
    """Rows of a tab-separated table, whose first line names the columns.

    There is no quoting, as in the tables of GLUE: a quotation mark is a character like any other,
    and no cell holds a tab or a line break.
    """
    texts = ((number, line.rstrip("\r\n")) for number, line in lines(file))
    cells = ((number, text.split("\t") if text else []) for number, text in texts)
    return _named_cells(file, cells, "; .tsv has no quoting: write .csv if cells need it")


def _named_cells(file: File, rows: Iterable[tuple[int, list[str]]], hint: str = "") -> Records:
    """Records of numbered rows; the first row that is not empty names the columns."""
    columns: list[str] = []
    for number, cells in rows:
        if not cells:
            continue
        place = f"{file.shown}, line {number}"
        if not columns:
            _no_name_twice(cells, place)
            columns = cells
            continue
        if len(cells) != len(columns):
            raise InputError(
                f"{place}: {len(cells)} cells in a row, but {len(columns)} columns in the first "
                f"line{hint}"
            )
        yield place, dict(zip(columns, cells, strict=True))


def _no_name_twice(columns: list[str], place: str) -> None:
    """Raise an `InputError` if two columns have the same name; unnamed columns are ignored."""
    seen: set[str] = set()
    for name in filter(None, columns):
        if name in seen:
            raise InputError(f"{place}: two columns are named {name!r}; rename or remove one")
        seen.add(name)


def parquet_records(file: File, fields: Sequence[str] | None = None) -> Records:
    """Rows of a Parquet file.

    Args:
        fields: the only fields to read, with dots for nested ones; None reads all.
    """
    with _table_faults(file), pq.ParquetFile(file.path) as table:
        columns = None if fields is None else list(fields)
        yield from _row_records(file, table.iter_batches(BATCH, columns=columns))


def parquet_columns(file: File) -> list[str]:
    """Names of a Parquet file's columns."""
    with _table_faults(file), pq.ParquetFile(file.path) as table:
        return list(table.schema_arrow.names)


def arrow_records(file: File, fields: Sequence[str] | None = None) -> Records:
    """Rows of an Arrow file in either layout: stream (which `datasets` writes) or file.

    Args:
        fields: as for `parquet_records`, but nested fields are read with their whole column.
    """
    with _table_faults(file), _open_arrow(file) as (names, batches):
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
    with _table_faults(file), _open_arrow(file) as (names, _):
        return names


@contextmanager
def _table_faults(file: File) -> Iterator[None]:
    """`read_faults`, with the further errors that damaged values and names cause."""
    try:
        with read_faults(file):
            yield
    except (ValueError, OverflowError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{file.shown} cannot be read to its end: {why}") from error


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
        batch.validate(full=True)  # checks offsets and UTF-8, which damage may spoil
        for row, record in enumerate(batch.to_pylist(), before + 1):
            yield f"{file.shown}, row {row}", record
        before += batch.num_rows


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
