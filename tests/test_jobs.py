"""Jobs: which run together, what happens to those that fail, how many fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.config import Protocol
from crammed.evaluate import jobs as module
from crammed.evaluate.encoders import EncoderSpec
from crammed.evaluate.finetune import Numerics
from crammed.evaluate.jobs import (
    BYTES_A_PARAMETER,
    BYTES_A_WORKER,
    Bench,
    Event,
    Job,
    SplitFile,
    TaskWork,
    _in_groups,
    _workers,
    run_jobs,
)
from crammed.progress import SILENT

BENCH = Bench(
    EncoderSpec("none", 0.1), Protocol(), Numerics(torch.device("cpu"), torch.float32, False)
)


def jobs_of(name: str, count: int, tokens: int = 100) -> list[Job]:
    split = SplitFile(Path(f"{name}.npz"), 1)
    task = TaskWork(name, "classification", 2, split, {name: split}, {}, tokens)
    return [Job(task, seed, True, Path(f"{name}-{seed}.npz"), "k") for seed in range(count)]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the work itself; fills with the groups that were asked for."""
    groups: list[list[str]] = []

    def work(group: Sequence[Job], bench: Bench) -> Iterator[Event]:
        groups.append([str(job) for job in group])
        if group[0].task.name == "huge" and len(group) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if group[0].task.name == "hopeless":
            raise torch.OutOfMemoryError("CUDA out of memory")
        for job in group:
            yield Event(float(job.task.tokens))
            yield Event(0.0, job, "bad rows" if job.task.name == "bad" else None)

    monkeypatch.setattr(module, "_together", work)
    return groups


def test_groups_are_of_one_task(together: list[list[str]]) -> None:
    list(_in_groups([*jobs_of("a", 3), *jobs_of("b", 2)], BENCH, 10))
    assert together == [["a, seed 1", "a, seed 2", "a, seed 3"], ["b, seed 1", "b, seed 2"]]
    together.clear()
    list(_in_groups(jobs_of("a", 5), BENCH, 2))
    assert [len(group) for group in together] == [2, 2, 1]


def test_groups_that_do_not_fit_are_halved(together: list[list[str]]) -> None:
    events = list(_in_groups([*jobs_of("huge", 5), *jobs_of("small", 3)], BENCH, 8))
    assert [len(group) for group in together] == [5, 2, 2, 1, 2, 1]
    assert sum(event.job is not None for event in events) == 8
    assert all(event.failure is None for event in events)


def test_a_model_that_fits_in_no_way_fails_alone(together: list[list[str]]) -> None:
    failures = run_jobs([*jobs_of("hopeless", 1), *jobs_of("fine", 1)], BENCH, 10, 1, SILENT)
    assert failures == {"hopeless": "out of memory: CUDA out of memory"}


def test_the_longest_go_first_and_failures_name_their_task(together: list[list[str]]) -> None:
    listed = [*jobs_of("bad", 2, 10), *jobs_of("long", 1, 1000), *jobs_of("short", 1, 5)]
    assert run_jobs(listed, BENCH, 10, 1, SILENT) == {"bad": "bad rows"}
    assert [group[0].split(",")[0] for group in together] == ["long", "bad", "bad", "short"]
    assert run_jobs([], BENCH, 10, 1, SILENT) == {}


def test_workers_are_limited_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 10**8
    a_worker = BYTES_A_WORKER + BYTES_A_PARAMETER * parameters

    def with_memory(memory: int | None) -> int:
        values: dict[str, Any] = {"cores": lambda: 8, "available_memory": lambda: memory}
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
        return _workers(parameters)

    assert with_memory(None) == 8
    assert with_memory(100 * a_worker) == 8
    assert with_memory(3 * a_worker + 5) == 3
    assert with_memory(a_worker // 2) == 1
