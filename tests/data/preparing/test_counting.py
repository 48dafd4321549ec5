"""Adding up the chunks of all shards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from crammed.config import ComputeConfig
from crammed.data.preparing.select import counting_job
from crammed.data.preparing.select.counting_job import sum_counts
from crammed.machine.engine import open_engine


def _table(counts: dict[str, int]) -> pa.Table:
    return pa.table({"chunk": pa.array(counts, pa.large_string()), "count": [*counts.values()]})


def test_memory_is_released_once_a_sum_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [{"a": n, f"only {n}": 1} for n in range(1, 18)]
    monkeypatch.setattr(counting_job, "chunk_counts", _table)
    released: list[list[str]] = []
    monkeypatch.setattr(
        counting_job,
        "release_memory",
        lambda: released.append(sorted(file.name for file in tmp_path.iterdir())),
    )
    with open_engine(ComputeConfig(workers=1)) as engine:
        counts = dict(counting_job.all_counts(engine, tables, tmp_path))  # type: ignore[arg-type]
    assert counts == {"a": 153, **{f"only {n}": 1 for n in range(1, 18)}}
    names = ["counts-0-00000.arrow", "counts-0-00001.arrow", "counts-1-00000.arrow"]
    assert released == [names[:1], names[:2], names]


def test_the_rarest_chunks_are_forgotten_if_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting_job, "MOST_CHUNKS", 8)
    often = _table({"a": 5, "b": 9})
    rare = [_table({f"{n}": 1, f"{n}!": 1}) for n in range(20)]
    assert sum_counts([often, *rare, often]).to_pydict() == {"chunk": ["a", "b"], "count": [10, 18]}
