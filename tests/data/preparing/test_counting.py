"""Adding up the chunks of all shards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from crammed.config import ComputeConfig
from crammed.data.preparing.select import counting_job
from crammed.machine.engine import open_engine


def _table(counts: dict[str, int]) -> pa.Table:
    return pa.table({"chunk": pa.array(counts, pa.large_string()), "count": [*counts.values()]})


def test_memory_is_released_once_a_sum_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [{"a": n, f"only {n}": 1} for n in range(1, 18)]
    monkeypatch.setattr(counting_job, "chunk_counts", lambda _, counts: _table(counts))
    released: list[list[str]] = []
    monkeypatch.setattr(
        counting_job,
        "release_memory",
        lambda: released.append(sorted(file.name for file in tmp_path.iterdir())),
    )
    shards = [(tmp_path / f"{n:05d}", counts) for n, counts in enumerate(tables)]
    with open_engine(ComputeConfig(workers=1)) as engine:
        counts = dict(counting_job.all_counts(engine, shards, tmp_path))  # type: ignore[arg-type]
    assert counts == {"a": 153, **{f"only {n}": 1 for n in range(1, 18)}}
    names = ["counts-0-00000.arrow", "counts-0-00001.arrow", "counts-1-00000.arrow"]
    assert released == [names[:1], names[:2], names]
