"""Adding up the chunks of all shards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from crammed.config import ComputeConfig
from crammed.data.preparing.select import counting_job
from crammed.data.preparing.select.counting_job import sum_counts
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.machine.engine import open_engine
from support.text import documents


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


def test_counts_of_shards_add_up() -> None:
    texts = documents(80)
    shards = [cut_into_chunks(texts[at : at + 20]) for at in range(0, 80, 20)]
    tables = [pa.table({"chunk": each.distinct, "count": each.counts}) for each in shards]
    whole = cut_into_chunks(texts)
    expected = dict(zip(whole.distinct.to_pylist(), whole.counts.tolist(), strict=True))
    assert _as_dict(sum_counts(tables)) == expected


def test_the_rarest_chunks_are_forgotten_if_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting_job, "MOST_CHUNKS", 8)
    often = _table({"a": 5, "b": 9})
    rare = [_table({f"{n}": 1, f"{n}!": 1}) for n in range(20)]
    assert _as_dict(sum_counts([often, *rare, often])) == {"a": 10, "b": 18}


def _as_dict(counts: pa.Table) -> dict[str, int]:
    return dict(zip(counts["chunk"].to_pylist(), counts["count"].to_pylist(), strict=True))
