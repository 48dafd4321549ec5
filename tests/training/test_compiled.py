"""The compiled step: one graph, no more shapes than announced, the numbers of the eager one."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.rules.recipe import recipe_names
from crammed.training.update.step import MOST_SHAPES
from support.steps import (
    check_compiled,
    loss_and_gradients,
    needs_compiler,
    rows_of,
    step_with,
    update_of,
)
from support.text import tiny

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


def quickly(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Trace as for a GPU, fullgraph and all, but do not generate code."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()


def graphs_kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code of every graph that is traced from now on."""
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph.code)
        return graph

    quickly(monkeypatch, note)
    return graphs


# Float32 is compared more closely below, where a growing batch leaves rows over.
FORMATS: list[dict[str, Any]] = [
    {"dtype": BFLOAT16},
    {"dtype": FLOAT16},
    {"dtype": BFLOAT16, "fp8": True, "recomputes": True},
]


# Every shape is traced: the longer case has two.
@pytest.mark.parametrize("rows", [16, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize("changes", FORMATS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_format_traces_into_one_graph(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], rows: int
) -> None:
    quickly(monkeypatch, "aot_eager")
    device = dataclasses.replace(cpu, microbatch_rows=8, **changes)
    check_compiled(tiny("crammed", "model.layers=1"), device, error=0.02, rows=rows)


def test_a_compiler_that_fails_is_one_line(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise ImportError("cached.so: file too short")  # after a kill while it was written

    quickly(monkeypatch, fail)
    step, _ = step_with(cpu, tiny("crammed", "model.layers=1"), compile=True)
    with pytest.raises(
        InputError, match=r"cached\.so: file too short.* remove the folder"
    ) as error:
        step.prepare([8], [0.25])
    assert "\n" not in str(error.value)


def test_what_the_compiler_cannot_trace_is_one_line(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _ = step_with(cpu, tiny("crammed", "model.layers=1"), compile=True)

    monkeypatch.setattr(step.objective, "_mask", lambda *_: torch._dynamo.graph_break())
    with pytest.raises(InputError, match="the compiler failed: Unsupported") as error:
        step.prepare([8], [0.25])
    assert "\n" not in str(error.value)


def test_a_seed_is_no_constant_of_the_compiled_step(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the masks nor for dropout."""
    graphs = graphs_kept(monkeypatch)
    for seed in (0, 1, 2**40 + 5):
        config = tiny("crammed", f"seed={seed}", "model.dropout=0.2")
        step, _ = step_with(cpu, config, compile=True)
        step.gradients(rows_of(8), update_of(8))
        torch._dynamo.reset()  # as a new process would be
    assert len(graphs) == 3
    assert len(set(graphs)) == 1


def test_as_many_shapes_as_a_ramp_has_may_be_compiled(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = graphs_kept(monkeypatch)
    config = tiny("crammed", "model.layers=1")
    step, _ = step_with(cpu, config, compile=True, microbatch_rows=9)
    rates = [0.1, 0.2]
    step.prepare(range(1, 10), rates)
    assert 8 < len(graphs) == 10 <= MOST_SHAPES  # of 1, 2, 4, 8 and 9 rows; PyTorch compiles eight
    for rate in rates:
        step.gradients(rows_of(9 + 7), dataclasses.replace(update_of(16), mask_rate=rate))
    assert len(graphs) == 10  # nothing is compiled later


@given(st.integers(1, 3000), st.integers(1, 64), st.sampled_from([16, 512]), st.booleans())
def test_any_growing_batch_has_few_shapes(
    cpu: Device, rows: int, quantums: int, most: int, ramp: bool
) -> None:
    quantum = max(1, rows // quantums)
    counts = {*range(quantum, rows, quantum), rows} if ramp else {rows}
    config = tiny("crammed", "model.layers=1")
    step, _ = step_with(cpu, config, compile=True, microbatch_rows=most)
    step._compile_for = lambda *_: None  # type: ignore[method-assign]
    step.prepare(counts, [0.25])
    split = {count: step._microbatches(count) for count in counts}
    assert all(sum(sizes) == count for count, sizes in split.items())
    assert all(sum(step._microbatches(count)) == count for count in (1, rows // 2))  # by a plan
    assert len({size for sizes in split.values() for size in sizes}) <= (11 if ramp else 2)
    assert all(len(sizes) <= count // most + 10 for count, sizes in split.items())


@pytest.mark.parametrize(
    ("words", "most", "rates", "shapes"),
    [
        ([], 9, 31, 155),  # of 1, 2, 4, 8 and 9 rows
        (["model.layers=4", "train.grow_at=[0.25,0.5]"], 1, 22, 66),  # 22 for each depth
    ],
)
def test_more_shapes_than_can_be_compiled_are_refused(
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    most: int,
    rates: int,
    shapes: int,
) -> None:
    quickly(monkeypatch, "eager")
    step, _ = step_with(cpu, tiny("crammed", *words), compile=True)
    with pytest.raises(InputError, match=rf"{shapes} shapes, and 64 .* lower masking\.stages"):
        step.prepare(range(1, most + 1), [n / 32 for n in range(1, rates + 1)])


def test_what_a_growing_batch_leaves_over_is_of_one_shape(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = graphs_kept(monkeypatch)
    config = tiny("crammed", "model.layers=1")
    compiled, _ = step_with(cpu, config, compile=True, microbatch_rows=16)
    compiled.prepare(range(4, 65, 4), [0.25])
    assert len(graphs) == 2  # of 16 rows, and of 4
    eager, _ = step_with(cpu, config, microbatch_rows=16)
    for rows in (4, 28, 64):
        losses = [step.gradients(rows_of(rows), update_of(rows)) for step in (compiled, eager)]
        torch.testing.assert_close(*losses)
    assert len(graphs) == 2
    for one, other in zip(compiled.parameters, eager.parameters, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


# The compiler's work for a CPU is checked in float32 by test_update.py in `make test`.
@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("recipe", recipe_names())
def test_what_the_compiler_makes_for_a_cpu_computes_the_same(
    cpu: Device, recipe: str, dtype: torch.dtype
) -> None:
    config = tiny(recipe, "model.layers=2", "model.dropout=0.0")
    found = {}
    for compiled in (False, True):
        torch._dynamo.reset()
        device = dataclasses.replace(cpu, compile=compiled, dtype=dtype)
        values = loss_and_gradients(config, device, update_of(8))
        found[compiled] = [each for each in values if each is not None]
    assert len(found[True]) == len(found[False]) > 10
    error = 1e-4 if dtype == FLOAT32 else 0.05
    for compiled_value, value in zip(found[True], found[False], strict=True):
        assert (compiled_value - value).norm() <= error * value.norm() + 1e-6
