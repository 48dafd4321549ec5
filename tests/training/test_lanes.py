"""Updates divided among lanes: what one thread makes of them, in parts that a run keeps."""

from __future__ import annotations

import dataclasses
import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crammed.config import ComputeConfig, RunConfig
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.machine.device import choose_device
from crammed.machine.lanes import Lanes
from crammed.model.encoder import MaskedLM
from crammed.optim.build import build_optimizer
from crammed.optim.muon import Muon
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_events
from crammed.terminal.progress import SILENT, Progress
from crammed.training.update.lanes import lanes_of, with_lanes
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.step import TrainStep
from support.steps import gradients_of, rows_of, step_with, update_of
from support.text import tiny

CPU = choose_device(ComputeConfig(device="cpu", dtype="float32"))


def in_lanes(count: int, *words: str, microbatch: int = 32) -> tuple[TrainStep, MaskedLM]:
    config = tiny("crammed", "batch.rows=16", f"compute.lanes={count}", *words)
    return step_with(CPU, config, microbatch_rows=microbatch)


def gradients(step: TrainStep, rows: int = 13) -> tuple[float, Tensor]:
    loss = step.gradients(rows_of(rows), update_of(rows)).item()
    return loss, gradients_of(step)


@pytest.mark.parametrize(("count", "microbatch"), [(2, 32), (3, 2), (20, 32)])
def test_lanes_compute_the_gradients_of_one_thread(count: int, microbatch: int) -> None:
    loss, alone = gradients(in_lanes(1)[0])
    step, _ = in_lanes(count, microbatch=microbatch)
    other, together = gradients(step)
    assert other == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


def test_the_bits_do_not_depend_on_which_lane_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    _, undisturbed = gradients(in_lanes(3)[0])
    original = MaskedTokens.loss

    def held_up(self: MaskedTokens, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)
        return original(self, rows, numbers, count)

    monkeypatch.setattr(MaskedTokens, "loss", held_up)
    _, late = gradients(in_lanes(3)[0])
    assert torch.equal(undisturbed, late)


def test_parts_are_equal_and_fill_all_lanes() -> None:
    step, _ = in_lanes(3, microbatch=4)
    for rows in range(1, 40):
        sizes = step._microbatches(rows)
        assert sum(sizes) == rows
        assert max(sizes) <= 4
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) % 3 == 0 or len(sizes) == rows


def test_muon_divided_among_lanes_makes_the_same_matrices() -> None:
    updated = []
    for count in (1, 3):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(48, 16, dtype=torch.float64)) for _ in range(2)]
        optimizer = Muon([{"params": weights, "parts": 3}], lr=0.1)
        optimizer.lanes = Lanes(count)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        updated.append(torch.stack([weight.detach() for weight in weights]))
    torch.testing.assert_close(*updated, rtol=0, atol=1e-6)


def test_an_optimizer_of_a_laned_step_is_divided() -> None:
    step, model = in_lanes(3, "optim.name=muon")
    parts = step.optimizer._parts
    assert [part.lanes.count for part in parts if isinstance(part, Muon)] == [3]
    undivided = build_optimizer(model, tiny("crammed", "optim.name=muon").optim)
    assert [part.lanes.count for part in undivided._parts if isinstance(part, Muon)] == [1]


def test_results_are_in_order_and_nothing_runs_on_after_a_fault() -> None:
    lanes, running = Lanes(3), list[int]()

    def work(number: int) -> int:
        running.append(number)
        time.sleep(0.01 * (5 - number))
        running.remove(number)
        return number

    assert list(lanes.map(work, range(5))) == list(range(5))

    def fails(number: int) -> int:
        if number == 0:
            raise ValueError("0")
        return work(number)

    with pytest.raises(ValueError, match="0"):
        list(lanes.map(fails, range(3)))
    assert not running


def test_only_the_lanes_have_one_compute_thread() -> None:
    torch.set_num_threads(2)
    try:
        lanes = Lanes(2)
        assert list(lanes.map(lambda _: torch.get_num_threads(), range(4))) == [1] * 4
        assert torch.get_num_threads() == 2
        assert list(Lanes(1).map(lambda _: torch.get_num_threads(), [0])) == [2]
    finally:
        torch.set_num_threads(1)


def test_shapes_are_compiled_with_the_threads_that_updates_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For another number of threads, the compiler would compile them again."""
    threads = set[int]()

    def compiled(loss: Any, **_: Any) -> Any:
        def noted(*given: Any) -> Any:
            threads.add(torch.get_num_threads())
            return loss(*given)

        return noted

    monkeypatch.setattr(torch, "compile", compiled)
    torch.set_num_threads(2)
    try:
        config = tiny("crammed", "batch.rows=16", "compute.lanes=2")
        step, _ = step_with(CPU, config, compile=True)
        step.prepare([16], [0.25])
        assert threads == {1}
        gradients(step, rows=16)
        assert threads == {1}
    finally:
        torch.set_num_threads(1)


def test_lanes_that_run_out_of_memory_take_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected = gradients(in_lanes(2)[0], rows=16)
    original = MaskedTokens.loss

    def scarce(self: MaskedTokens, rows: Tensor, numbers: Tensor, count: int) -> Tensor:
        if len(rows) > 2:
            raise RuntimeError("out of memory")
        return original(self, rows, numbers, count)

    monkeypatch.setattr(MaskedTokens, "loss", scarce)
    step, _ = in_lanes(2)
    _, found = gradients(step, rows=16)
    assert step.microbatch_rows == 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "changes", "count"),
    [
        ([], {}, 4),
        (["batch.rows=31"], {}, 3),  # with 256 tokens at least
        (["batch.rows=15"], {}, 1),
        (["model.width=288"], {}, 1),
        (["model.dropout=0.1"], {}, 1),
        ([], {"compile": True}, 1),
        ([], {"torch": torch.device("cuda")}, 1),
        (["compute.lanes=2"], {"compile": True}, 2),
        (["compute.lanes=1"], {}, 1),
    ],
)
def test_a_lane_for_each_thread_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, words: list[str], changes: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    config = tiny("crammed", "batch.rows=64", "model.width=64", *words)
    assert lanes_of(config, dataclasses.replace(CPU, **changes)) == count


def test_processes_that_train_together_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr("crammed.training.update.lanes.world_size", lambda: 2)
    assert lanes_of(tiny("crammed", "batch.rows=64"), CPU) == 1


@pytest.mark.parametrize(
    ("word", "changes", "named"),
    [
        ("model.dropout=0.1", {}, "model.dropout=0"),
        ("batch.rows=16", {"torch": torch.device("cuda")}, "needs a CPU"),
    ],
)
def test_lanes_where_there_can_be_none_are_refused(
    word: str, changes: dict[str, Any], named: str
) -> None:
    config = tiny("crammed", "compute.lanes=2", word)
    with pytest.raises(InputError, match=named):
        lanes_of(config, dataclasses.replace(CPU, **changes))


def lanes_in(config: RunConfig, run: RunDir, said: Progress = SILENT) -> int | None:
    return with_lanes(config, run, CPU, said).compute.lanes


def test_a_run_keeps_the_lanes_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, printed = tiny("crammed", "batch.rows=64"), io.StringIO()
    said = Progress(printed)
    with RunDir.open(tmp_path / "run", config) as run:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
        assert lanes_in(config, run) == 4
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # on another machine
        assert lanes_in(config, run, said) == 4
        assert not printed.getvalue()
        typed = tiny("crammed", "batch.rows=64", "compute.lanes=2")
        assert lanes_in(typed, run, said) == 2
        assert "lanes  2 instead of 4" in printed.getvalue()
        assert [e["count"] for e in read_events(run.path)] == [4, 2]


def test_another_configuration_begins_with_its_own_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    config = tiny("crammed", "batch.rows=64")
    other = tiny("crammed", "batch.rows=64", "model.dropout=0.1")
    with RunDir.open(tmp_path / "run", config) as run:
        write_json(run.path / "corpus" / "manifest.json", {})
        run.event("stage", name="prepare", seconds=5.0)
        assert lanes_in(config, run) == 4
        run.heartbeat(40.0)  # and it is stopped before its first update
    with RunDir.open(tmp_path / "run", config) as run:
        assert lanes_in(config, run) == 4
        assert run.last_heartbeat() == 40.0
    with RunDir.open(tmp_path / "run", other) as run:
        assert lanes_in(other, run) == 1
        assert run.last_heartbeat() == 0.0
    assert [e["event"] for e in read_events(run.path)] == ["stage", "anew", "lanes"]


def test_a_run_of_an_older_version_keeps_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    config = tiny("crammed", "batch.rows=64")
    with RunDir.open(tmp_path / "run", config) as run:
        run.metrics({"update": 1})
        assert lanes_in(config, run) == 1


def test_a_run_that_goes_on_elsewhere_has_no_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("crammed", "batch.rows=64")
    with RunDir.open(tmp_path / "run", config) as run:
        run.event("lanes", count=2)
        gpu = dataclasses.replace(CPU, torch=torch.device("cuda"))
        assert with_lanes(config, run, gpu, SILENT).compute.lanes == 1
        monkeypatch.setattr("crammed.training.update.lanes.world_size", lambda: 2)
        assert lanes_in(config, run) == 1


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_a_damaged_number_of_lanes_is_refused(tmp_path: Path, count: int) -> None:
    config = tiny("crammed", "batch.rows=64")
    with RunDir.open(tmp_path / "run", config) as run:
        run.event("lanes", count=count)
        with pytest.raises(InputError, match="jsonl is damaged"):
            lanes_in(config, run)
