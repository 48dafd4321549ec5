"""How often each chunk of the corpus occurs, added up over its shards."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

MOST_CHUNKS = 4_000_000
"""A sum of more chunks than this loses the rarest."""


def sum_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all counts, without the rarest chunks if there are too many.

    Args:
        tables: with the columns ``chunk`` (text) and ``count`` (int64).
    """
    groups = pa.concat_tables(tables).group_by("chunk", use_threads=False)
    merged = groups.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"})
    least = 2
    while merged.num_rows > MOST_CHUNKS:
        merged = merged.filter(pc.greater_equal(merged["count"], least))
        least += 1
    return merged
