"""How often each chunk of the corpus occurs, added up over its shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

MOST_CHUNKS = 8_000_000
"""Counts to add up at a time; a sum of more than half as many chunks loses the rarest."""


def total_counts(shards: Iterable[pa.Table]) -> Iterator[tuple[str, int]]:
    """Each distinct chunk and how often it occurs, without the rarest if there are too many.

    Args:
        shards: tables with the columns ``chunk`` (text) and ``count`` (int64).
    """
    waiting: list[pa.Table] = []
    for counts in shards:
        waiting.append(counts)
        if sum(table.num_rows for table in waiting) > MOST_CHUNKS:
            waiting = [_sum(waiting)]
    merged = _sum(waiting)
    waiting.clear()
    for batch in merged.to_batches(max_chunksize=10_000):
        yield from zip(batch["chunk"].to_pylist(), batch["count"].to_pylist(), strict=True)


def _sum(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all counts, without the rarest chunks if there are too many."""
    groups = pa.concat_tables(tables).group_by("chunk", use_threads=False)
    merged = groups.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})
    least = 2
    while merged.num_rows > MOST_CHUNKS // 2:
        merged = merged.filter(pc.greater_equal(merged["count"], least))
        least += 1
    return merged
