"""Adds up how often each chunk occurs in all shards, a few tables at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from crammed.columns import integers, numbers_in, one_array
from crammed.data.preparing.select.selection_job import SelectedShard, chunk_counts
from crammed.data.shards import read_table, write_table
from crammed.machine.engine import Engine, release_memory

FAN_IN = 16
"""Tables that one job adds up."""
MOST_CHUNKS = 4_000_000
"""A sum of more chunks than this loses the rarest."""
_COLUMNS = ("chunk", "count")

_Counted = Path | SelectedShard
"""A table of another job, or a shard after selection."""


def all_counts(
    engine: Engine, shards: Iterable[SelectedShard], folder: Path
) -> Iterator[tuple[str, int]]:
    """Each distinct chunk and how often it occurs, without the rarest if there are too many.

    Args:
        shards: after the stage ``select``.
        folder: for tables on the way.
    """
    level = 0
    counted: Iterator[_Counted] = iter(shards)
    while True:
        names = (folder / f"counts-{level}-{number:05d}.arrow" for number in count())
        tables = list(engine.map(_add_up, zip(_groups(counted), names, strict=False)))
        if len(tables) == 1:
            break
        level, counted = level + 1, iter(tables)
    for batch in read_table(tables[0], _COLUMNS).to_batches(max_chunksize=10_000):
        yield from zip(batch["chunk"].to_pylist(), batch["count"].to_pylist(), strict=True)


def _groups(counted: Iterator[_Counted]) -> Iterator[tuple[_Counted, ...]]:
    while some := tuple(islice(counted, FAN_IN)):
        yield some


def _add_up(job: tuple[tuple[_Counted, ...], Path]) -> Path:
    counted, out = job
    tables = (read_table(c, _COLUMNS) if isinstance(c, Path) else chunk_counts(c) for c in counted)
    write_table(out, sum_counts([*tables]))
    release_memory()  # that of selecting, too: workers have nothing to do while one process trains
    return out


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
