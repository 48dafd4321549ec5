"""Reads a Parquet file by row groups, which can be read side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from crammed.formats.lines import STOP, CutShort, Faults, File
from crammed.formats.records import BATCH, Records, row_records, table_faults


@dataclass(frozen=True)
class RowGroups:
    """Consecutive row groups of a Parquet file.

    Attributes:
        start, end: number of the first of them, and of the first one after them, from 0.
        rows_before: rows of the file before these.
        share: how much of all row groups' bytes they are, from 0 to 1.
    """

    start: int
    end: int
    rows_before: int
    share: float


def row_groups(file: File, field: str, size: int) -> list[RowGroups] | None:
    """All row groups that hold rows, in pieces of at least `size` bytes of text but for the last.

    None if there is no column of this name that holds text, of which only reading the file can say
    what is wrong.

    Raises:
        InputError: the file is damaged.
    """
    with table_faults(file), pq.ParquetFile(file.path) as table:
        columns = [table.schema.column(n) for n in range(len(table.schema))]
        places = [place for place, column in enumerate(columns) if column.path == field]
        if len(places) != 1:
            return None
        column = columns[places[0]]
        if column.logical_type.type != "STRING" or column.max_repetition_level:
            return None
        return _pieces(table.metadata, places[0], size)


def _pieces(metadata: Any, column: int, size: int) -> list[RowGroups]:
    pieces: list[RowGroups] = []
    start = rows = rows_before = stored = text = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        stored += sum(group.column(n).total_compressed_size for n in range(group.num_columns))
        text += group.column(column).total_uncompressed_size
        if rows and (text >= size or number == metadata.num_row_groups - 1):
            pieces.append(RowGroups(start, number + 1, rows_before, float(stored)))
            start, rows_before = number + 1, rows_before + rows
            rows = stored = text = 0
    whole = sum(piece.share for piece in pieces) or 1.0  # a damaged file may say 0
    return [replace(piece, share=piece.share / whole) for piece in pieces]


def row_group_records(
    file: File,
    fields: list[str] | None = None,
    faults: Faults = STOP,
    groups: RowGroups | None = None,
) -> Records:
    """Rows of these row groups, or of all; damage loses the rest of the row group that it is in.

    Reads only `fields`, with dots for nested ones; None reads all.
    """
    with table_faults(file), pq.ParquetFile(file.path) as table:
        groups = groups or RowGroups(0, table.num_row_groups, 0, 1.0)
        before = groups.rows_before
        for number in range(groups.start, groups.end):
            rows, read = table.metadata.row_group(number).num_rows, 0
            place = File(file.path, f"{file.shown}, row group {number + 1}")
            try:
                with table_faults(place):
                    batches = table.iter_batches(BATCH, [number], columns=fields)
                    for record in row_records(file, batches, before):
                        read += 1
                        yield record
            except CutShort as error:
                faults.found(error, max(1, rows - read))
            before += rows
