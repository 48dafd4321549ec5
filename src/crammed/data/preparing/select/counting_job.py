"""Adds up how often each chunk occurs in all shards, a few tables at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from crammed.columns import integers, numbers_in, one_array
from crammed.data.preparing.select.selection_job import ShardSelection, chunk_counts
from crammed.data.shards import read_table, write_table
from crammed.machine.engine import Engine, release_memory

FAN_IN = 16
"""Tables that one job adds up."""
MOST_CHUNKS = 4_000_000
"""A sum of more chunks than this loses the rarest."""
_COLUMNS = ("chunk", "count")

Item = TypeVar("Item")


@dataclass(frozen=True)
class _CountJob:
    """Counts to add up: of shards after selection, or tables of other jobs."""

    shards: tuple[tuple[Path, ShardSelection], ...]
    tables: tuple[Path, ...]
    out: Path


def all_counts(
    engine: Engine, shards: Iterable[tuple[Path, ShardSelection]], folder: Path
) -> Iterator[tuple[str, int]]:
    """Each distinct chunk and how often it occurs, without the rarest if there are too many.

    Args:
        shards: path of each shard's files from the stage ``select`` on, and its selection.
        folder: for tables on the way.
    """
    level = 0
    jobs = (
        _CountJob(some, (), folder / f"counts-0-{number:05d}.arrow")
        for number, some in enumerate(_groups(shards))
    )
    while True:
        tables = list(engine.map(_add_up, jobs))
        if len(tables) == 1:
            break
        level += 1
        jobs = (
            _CountJob((), some, folder / f"counts-{level}-{number:05d}.arrow")
            for number, some in enumerate(_groups(tables))
        )
    for batch in read_table(tables[0], _COLUMNS).to_batches(max_chunksize=10_000):
        yield from zip(batch["chunk"].to_pylist(), batch["count"].to_pylist(), strict=True)


def _groups(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    left = iter(items)
    while some := tuple(islice(left, FAN_IN)):
        yield some


def _add_up(job: _CountJob) -> Path:
    counts = (chunk_counts(out, selection) for out, selection in job.shards)
    write_table(job.out, sum_counts([*counts, *(read_table(t, _COLUMNS) for t in job.tables)]))
    release_memory()  # that of selecting, too: workers have nothing to do while one process trains
    return job.out


def sum_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all counts, without the rarest chunks if there are too many.

    Args:
        tables: with the columns ``chunk`` (text) and ``count`` (int64).
    """
    together = pa.concat_tables(tables)
    coded = one_array(together["chunk"]).dictionary_encode()
    each = numbers_in(one_array(together["count"]))
    counts = np.bincount(numbers_in(coded.indices), each, len(coded.dictionary)).astype(np.int64)
    least = 1
    while np.count_nonzero(counts >= least) > MOST_CHUNKS:
        least += 1
    merged = pa.Table.from_arrays([coded.dictionary, integers(counts)], list(_COLUMNS))
    return merged if least == 1 else merged.take(integers(np.flatnonzero(counts >= least)))
