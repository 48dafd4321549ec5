"""How often each document is packed, given a weight of its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crammed.data.shards import Slices, digests
from crammed.machine.engine import Engine


@dataclass(frozen=True)
class WeightJob:
    """The documents of a shard, and how often to pack each on average."""

    shard: Slices
    weight: float


def weighted(engine: Engine, jobs: Sequence[WeightJob]) -> Iterator[NDArray[np.uint16]]:
    """[n] how often to pack each document, for each job."""
    drawn = engine.map(_drawn, [job for job in jobs if job.weight % 1.0])
    for job in jobs:
        documents = sum(map(len, job.shard))
        once_more = next(drawn) if job.weight % 1.0 else np.zeros(documents, np.bool_)
        yield (int(job.weight) + once_more).astype(np.uint16)


def _drawn(job: WeightJob) -> NDArray[np.bool_]:
    """Which documents are packed once more for the fraction of a weight; the digest decides."""
    drawn: NDArray[np.bool_] = digests(job.shard)[:, 1] / 2.0**64 < job.weight % 1.0
    return drawn
