"""The records of one file: JSON lines, tables of text, Parquet.

Every fault in a file is an `InputError` that names the file and the line or row.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from crammed.errors import InputError
from crammed.formats.lines import File, faults, lines

BATCH = 128  # rows turned into Python objects at once: books of a megabyte must fit in memory
_LARGEST_FIELD = 2**31 - 1  # of a .csv cell, in characters; the csv module's own limit is 131,072

Record = Mapping[str, Any]
Records = Iterator[tuple[str, Record]]
"""Each with its place, file and line or row, for messages."""


def json_records(file: File) -> Records:
    """JSON objects, one a line; blank lines are passed over."""
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


def delimited_records(file: File, delimiter: str) -> Records:
    """Rows of cells; the first row names the columns."""
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


def parquet_records(file: File) -> Records:
    """Rows of a Parquet file, all columns."""
    with faults(file), pq.ParquetFile(file.path) as table:
        for row, record in enumerate(rows_of(table.iter_batches(BATCH)), 1):
            yield f"{file.shown}, row {row}", record


def is_json_lines(file: File) -> bool:
    """Whether the first line that is not blank is a JSON object.

    Raises:
        InputError: as reading the file does.
    """
    first = next((line for _, line in lines(file) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def rows_of(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        batch.validate(full=True)  # offsets and UTF-8, which a damaged file has wrong
        yield from batch.to_pylist()


def look_up(record: Mapping[str, Any], key: str) -> Any:
    """The value of a field; a key with dots that is no field itself leads into nested ones.

    Raises:
        KeyError: no such field.
    """
    if key in record:
        return record[key]
    outer, dot, inner = key.partition(".")
    nested = record.get(outer)
    if not dot or not isinstance(nested, Mapping):
        raise KeyError(key)
    return look_up(nested, inner)


def without_surrogates(text: str) -> str:
    r"""Text that UTF-8 can carry: JSON may escape half a character (``"\ud83d"``)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
