"""Reads the records of one file as dicts: JSON, Arrow; `row_groups` and `tables` read others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from crammed.errors import InputError, in_one_line
from crammed.formats.json_array import array_objects
from crammed.formats.lines import (
    STOP,
    CutShort,
    Faults,
    File,
    Numbered,
    lines_of,
    open_lines,
    read_faults,
    skip_space,
)

BATCH = 128  # rows made into Python objects at a time: books of a megabyte must fit in memory
_MOST_SHOWN = 500  # characters of a list of names

Record = Mapping[str, Any]
Records = Iterator[tuple[str, Record]]
"""Each record with its place (file and line or row), for messages."""


def json_records(file: File, faults: Faults = STOP, *, once: bool = False) -> Records:
    """JSON objects: one per line, with blank lines ignored, or those of an array in any layout.

    Args:
        once: refuse an object with the same key twice, of which the last is taken otherwise.
    """
    with open_lines(file) as stream:  # once, since a pipe cannot be read again
        ended, first = skip_space(stream)
        if first == b"[":
            for place, text in array_objects(stream, file):
                try:
                    record = _json_object(text, place, "an array must hold whole objects", once)
                except InputError as error:
                    faults.found(error)
                else:
                    yield place, record
        else:
            yield from json_line_records(lines_of(stream, file, ended + 1), file, faults, once)


def json_line_records(
    numbered: Numbered, file: File, faults: Faults, once: bool = False
) -> Records:
    """JSON objects, one in each numbered line; blank lines are ignored."""
    for number, line in numbered:
        place = f"{file.shown}, line {number}"
        try:
            if isinstance(line, InputError):
                raise line
            line = line.removeprefix("\ufeff")  # of a file that was joined to another
            if not line.strip():
                continue
            rule = "each line must be one whole object, as `jq -c` writes"
            record = _json_object(line, place, rule, once)
        except InputError as error:
            faults.found(error)
        else:
            yield place, record


def is_array(file: File) -> bool:
    """Whether a JSON file is one array instead of lines."""
    with open_lines(file) as stream:
        return skip_space(stream)[1] == b"["


def _json_object(text: str, place: str, rule: str, once: bool) -> Record:
    def unique(pairs: list[tuple[str, Any]]) -> Record:
        if len(found := dict(pairs)) < len(pairs):
            check_names(place, (key for key, _ in pairs))
        return found

    try:
        record = json.loads(text, object_pairs_hook=unique if once else None)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not valid JSON; {rule}") from error
    if not isinstance(record, dict):
        raise InputError(f"{place}: a JSON {type(record).__name__}, not an object with fields")
    return record


def parquet_columns(file: File) -> list[str]:
    with table_faults(file), pq.ParquetFile(file.path) as table:
        return list(table.schema_arrow.names)


def arrow_records(file: File, fields: Sequence[str]) -> Records:
    """Rows of an Arrow file in either layout: stream (which `datasets` writes) or file.

    Only these fields are read, nested ones with their whole column.
    """
    with table_faults(file), _open_arrow(file) as (names, batches):
        roots = {field if field in names else field.partition(".")[0] for field in fields}
        names = [name for name in names if name in roots]
        check_names(file.shown, names)
        slices = (
            batch.slice(at, BATCH).select(names)
            for batch in batches
            for at in range(0, batch.num_rows, BATCH)
        )
        yield from row_records(file, slices)


def arrow_columns(file: File) -> list[str]:
    with table_faults(file), _open_arrow(file) as (names, _):
        return names


@contextmanager
def table_faults(file: File) -> Iterator[None]:
    """`read_faults`, with the further errors that damaged values and names cause."""
    try:
        with read_faults(file):
            yield
    except (ValueError, OverflowError) as error:
        why = in_one_line(error)
        raise CutShort(f"{file.shown} cannot be read to its end: {why}") from error


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


def row_records(file: File, batches: Iterable[Any], before: int = 0) -> Records:
    """Rows of record batches, of which the first has this many rows of the file before it.

    Raises:
        InputError: two columns have the same name, or values are damaged.
    """
    for batch in batches:
        check_names(file.shown, batch.schema.names)
        batch.validate(full=True)  # checks offsets and UTF-8, which damage may spoil
        for row, record in enumerate(batch.to_pylist(), before + 1):
            yield f"{file.shown}, row {row}", record
        before += batch.num_rows


def check_names(place: str, columns: Iterable[str]) -> None:
    """Raise an `InputError` if a record would hold only one of two columns."""
    for name, count in Counter(columns).items():
        if count > 1:
            raise InputError(
                f"{place}: {count} columns are named {name!r}; rename or remove all but one"
            )


def look_up(record: Record, key: str) -> Any:
    """The value of a field; the dots of a key that is not itself a field lead to nested fields.

    A field of what is null is null, too.

    Raises:
        KeyError: there is no such field.
    """
    if key in record:
        return decoded(record[key])
    outer, dot, inner = key.partition(".")
    nested = record.get(outer)
    if dot and nested is None and outer in record:
        return None
    if not dot or not isinstance(nested, Mapping):
        raise KeyError(key)
    return look_up(nested, inner)


def decoded(value: Any) -> Any:
    """A value, as text if it is bytes in UTF-8: many Parquet files do not say that theirs are."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value


def shown_names(names: Iterable[str]) -> str:
    """Names of columns for a message, on one line."""
    return without_surrogates(" ".join(", ".join(names).split()))[:_MOST_SHOWN]


def without_surrogates(text: str) -> str:
    r"""Text that UTF-8 can encode: JSON may escape half a character (``"\ud83d"``)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
