"""How often each document is packed, given a weight of its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from crammed.data.shards import Slices, digests
from crammed.machine.engine import Engine


def weighted(
    engine: Engine, shards: Sequence[tuple[Slices, float]]
) -> Iterator[NDArray[np.uint16]]:
    """[n] how often to pack each document of shards, given how often on average."""
    drawn = engine.map(_drawn, [each for each in shards if each[1] % 1.0])
    for shard, weight in shards:
        once_more = next(drawn) if weight % 1.0 else np.zeros(sum(map(len, shard)), np.bool_)
        yield (int(weight) + once_more).astype(np.uint16)


def _drawn(job: tuple[Slices, float]) -> NDArray[np.bool_]:
    """Which documents are packed once more for the fraction of a weight; the digest decides."""
    shard, weight = job
    drawn: NDArray[np.bool_] = digests(shard)[:, 1] / 2.0**64 < weight % 1.0
    return drawn
