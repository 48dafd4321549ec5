"""How often each chunk of the corpus occurs, added up over its shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from crammed.columns import integers, numbers_in, one_array

MOST_CHUNKS = 4_000_000
"""A sum of more chunks than this loses the rarest."""


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
    merged = pa.Table.from_arrays([coded.dictionary, integers(counts)], ["chunk", "count"])
    return merged if least == 1 else merged.take(integers(np.flatnonzero(counts >= least)))
