"""Jobs: which run together, what happens to those that fail, how many fit."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crammed.config import Protocol
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.finetuning import jobs as module
from crammed.evaluation.finetuning.engine import CaptureFailed, Numerics
from crammed.evaluation.finetuning.jobs import (
    BYTES_A_PARAMETER,
    BYTES_A_WORKER,
    FinetuneJob,
    FinetuneSetup,
    JobProgress,
    _in_groups,
    _in_worker,
    _workers,
    run_jobs,
)
from crammed.evaluation.finetuning.task import FinetuneTask, TokenizedSplit
from crammed.terminal.progress import SILENT, Progress

SETUP = FinetuneSetup(
    BackboneSpec("none"), "", Protocol(), Numerics(torch.device("cpu"), torch.float32, False)
)


def jobs_of(name: str, count: int, tokens: int = 100) -> list[FinetuneJob]:
    split = TokenizedSplit(Path(f"{name}.npz"), 1)
    task = FinetuneTask(name, "classification", 2, split, {name: split}, {}, tokens)
    return [FinetuneJob(task, seed, True, Path(f"{name}-{seed}.npz"), "k") for seed in range(count)]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the fine-tuning itself; collects the groups that were asked for."""
    groups: list[list[str]] = []

    def work(group: Sequence[FinetuneJob], setup: FinetuneSetup) -> Iterator[JobProgress]:
        groups.append([str(job) for job in group])
        if group[0].task.name == "huge" and len(group) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if group[0].task.name == "hopeless":
            raise torch.OutOfMemoryError("CUDA out of memory")
        for job in group:
            yield JobProgress(float(job.task.tokens))
            yield JobProgress(0.0, job, "bad rows" if job.task.name == "bad" else None)

    monkeypatch.setattr(module, "_together", work)
    return groups


def test_groups_are_of_one_task(together: list[list[str]]) -> None:
    list(_in_groups([*jobs_of("a", 3), *jobs_of("b", 2)], SETUP, 10, SILENT))
    assert together == [["a, seed 1", "a, seed 2", "a, seed 3"], ["b, seed 1", "b, seed 2"]]
    together.clear()
    list(_in_groups(jobs_of("a", 5), SETUP, 2, SILENT))
    assert [len(group) for group in together] == [2, 2, 1]


def test_groups_that_do_not_fit_are_halved(together: list[list[str]]) -> None:
    reports = list(_in_groups([*jobs_of("huge", 5), *jobs_of("small", 3)], SETUP, 8, SILENT))
    assert [len(group) for group in together] == [5, 2, 2, 1, 2, 1]
    assert sum(report.job is not None for report in reports) == 8
    assert all(report.failure is None for report in reports)


def test_a_model_that_fits_in_no_way_fails_alone(together: list[list[str]]) -> None:
    failures = run_jobs([*jobs_of("hopeless", 1), *jobs_of("fine", 1)], SETUP, 10, 1, SILENT)
    assert failures == {"hopeless": "out of memory: CUDA out of memory"}
    for most in (1, 10):  # a limit above the number of jobs has no effect
        reports = list(_in_groups(jobs_of("hopeless", 3), SETUP, most, SILENT))
        assert [report.failure for report in reports] == ["out of memory: CUDA out of memory"] * 3


def test_memory_that_runs_out_in_a_worker_is_a_failure_of_its_job(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_worker", (SETUP, multiprocessing.Value("d", 0.0)))
    assert _in_worker(jobs_of("hopeless", 1)[0]) == "out of memory: CUDA out of memory"
    assert _in_worker(jobs_of("fine", 1)[0]) is None


def test_a_model_that_no_graph_can_hold_is_fine_tuned_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[bool] = []

    def work(group: Sequence[FinetuneJob], setup: FinetuneSetup) -> Iterator[JobProgress]:
        graphs.append(setup.numerics.graphs)
        if setup.numerics.graphs:
            raise CaptureFailed("operation not permitted when stream is capturing")
        for job in group:
            yield JobProgress(0.0, job)

    monkeypatch.setattr(module, "_together", work)
    setup = replace(SETUP, numerics=replace(SETUP.numerics, graphs=True))
    said = io.StringIO()
    reports = list(_in_groups([*jobs_of("a", 2), *jobs_of("b", 2)], setup, 10, Progress(said)))
    assert [report.failure for report in reports] == [None] * 4
    assert graphs == [True, False, False]
    assert "without CUDA graphs, which is slower: operation not permitted" in said.getvalue()


def test_the_longest_go_first_and_failures_name_their_task(together: list[list[str]]) -> None:
    listed = [*jobs_of("bad", 2, 10), *jobs_of("long", 1, 1000), *jobs_of("short", 1, 5)]
    assert run_jobs(listed, SETUP, 10, 1, SILENT) == {"bad": "bad rows"}
    assert [group[0].split(",")[0] for group in together] == ["long", "bad", "bad", "short"]
    assert run_jobs([], SETUP, 10, 1, SILENT) == {}


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


@pytest.mark.parametrize("threads", [1, 2, None])
def test_a_job_computes_with_the_threads_that_it_began_with(
    threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def work(group: Sequence[FinetuneJob], _: FinetuneSetup) -> Iterator[JobProgress]:
        seen.append(torch.get_num_threads())
        yield JobProgress(0.0, group[0])

    monkeypatch.setattr(module, "_together", work)
    before = torch.get_num_threads()
    run_jobs(jobs_of("task", 1), replace(SETUP, threads=threads), 1, None, SILENT)
    assert seen == [threads or before]
    assert torch.get_num_threads() == before


def test_jobs_with_several_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 4)
    monkeypatch.setattr(module, "_workers", lambda _: 4)
    counts: list[int] = []

    def work(jobs: Sequence[FinetuneJob], _: FinetuneSetup, workers: int) -> Iterator[JobProgress]:
        counts.append(workers)
        yield from (JobProgress(0.0, job) for job in jobs)

    monkeypatch.setattr(module, "_in_processes", work)
    for threads in (1, 2, None):
        run_jobs(jobs_of("task", 8), replace(SETUP, threads=threads), 1, None, SILENT)
    assert counts == [4, 2, 4]
    assert module.usual_threads(8, 1, None) == 1
    assert module.usual_threads(2, 1, None) == 2
    assert module.usual_threads(1, 1, None) == torch.get_num_threads()


def test_another_model_in_the_same_folder_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    read = iter(("first", "second"))
    monkeypatch.setattr(BackboneSpec, "load", lambda _: next(read))
    spec = BackboneSpec("runs/one")
    found: list[Any] = [module._loaded(spec, sha256) for sha256 in ("a", "a", "b")]
    module._loaded.cache_clear()
    assert found == ["first", "first", "second"]
