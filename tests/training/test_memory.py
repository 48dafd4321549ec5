"""Microbatches that fit: planned by measuring, and halved where memory runs out all the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crammed.errors import InputError
from crammed.machine.device import Device, is_out_of_memory
from crammed.model.encoder import MaskedLM
from crammed.model.layer import Layer
from crammed.training.update.build import build, step_of
from crammed.training.update.memory import (
    LEAST_TOKENS,
    MOST_TOKENS,
    SHARE,
    bytes_per_parameter,
    fitting_rows,
)
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, gradients_of, rows_of, step_with, update_of
from support.text import tiny


@given(
    st.integers(10**3, 10**8),
    st.integers(0, 10**9),
    st.integers(10**8, 10**11),
    st.integers(8, 512),
)
def test_planned_rows_fit_and_twice_as_many_do_not(
    a_row: int, fixed: int, free: int, length: int
) -> None:
    rows = fitting_rows(lambda count: fixed + a_row * count, free, length)
    assert rows >= 1
    assert rows & (rows - 1) == 0
    assert rows == 1 or (fixed + a_row * rows <= SHARE * free and rows * length <= MOST_TOKENS)
    more = 2 * rows
    assert fixed + a_row * more > SHARE * free - 2 * a_row or more * length > MOST_TOKENS


def test_memory_too_small_to_measure_leaves_one_row() -> None:
    def full(rows: int) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert fitting_rows(full, 10**9, 128) == 1

    def tight(rows: int) -> int:
        if rows > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 10 * rows

    assert fitting_rows(tight, 60, 128) == 4  # fewer rows are tried

    def broken(rows: int) -> int:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        fitting_rows(broken, 10**9, 128)


@pytest.mark.parametrize("runs_out", [False, True])
def test_gradients_that_hide_what_a_row_takes_do_not_promise_room(runs_out: bool) -> None:
    gradients, a_row, free = 10**8, 10**6, 2 * 10**8
    tried = []

    def peak(rows: int) -> int:
        tried.append(rows)
        taken = max(gradients + 1000 * rows, a_row * rows)
        if runs_out and taken > free:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return taken

    assert fitting_rows(peak, free, 128) == 128
    assert tried == [8, 16, 512, 256, 128]


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 bytes"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_every_backend_says_it_in_its_own_words(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) == is_one
    after = RuntimeError("capture invalidated")
    after.__context__ = error  # as of an error at the end of what the first one ended
    assert is_out_of_memory(after) == is_one


def limited(step: TrainStep, most: int) -> list[int]:
    """Make microbatches of more than `most` rows fail, as a small card would; the sizes tried."""
    tried: list[int] = []
    real = step._loss

    def loss(rows: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
        tried.append(len(rows))
        if len(rows) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(rows, numbers, count)

    step._loss = loss
    return tried


def recomputes(step: TrainStep) -> bool:
    """Whether all layers do; never only some of them."""
    assert isinstance(step.objective, MaskedTokens)
    modules = step.objective.copy.modules()
    found = {module.recompute for module in modules if isinstance(module, Layer)}
    assert len(found) == 1
    return found.pop()


def test_an_update_that_runs_out_of_memory_begins_again_smaller(cpu: Device) -> None:
    step, _ = step_with(cpu, microbatch_rows=16)
    rows, update = rows_of(16), update_of(16)
    tried = limited(step, 5)
    loss = step.gradients(rows, update)
    assert tried == [16, 16, 8, 4, 4, 4, 4], "so few tokens are recomputed before they are halved"
    assert recomputes(step)
    assert step.microbatch_rows == 4
    tried.clear()
    again = step.gradients(rows, update)
    assert tried == [4, 4, 4, 4], "what did not fit is not tried again"
    assert torch.equal(loss, again)


def test_the_gradients_are_those_of_the_whole_update(cpu: Device) -> None:
    found = []
    for most in (16, 3):
        step, _ = step_with(cpu, microbatch_rows=16)
        limited(step, most)
        step.gradients(rows_of(16), update_of(16))
        found.append(gradients_of(step))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


GIB = 2**30
A_TOKEN = 240 * 1024
"""Bytes of activations, about as many as 16 layers of width 768 keep in 16 bits."""


@pytest.mark.parametrize(
    ("memory", "length", "expected", "recomputed"),
    [
        (141 * GIB, 128, 512, False),
        (80 * GIB, 512, 128, False),
        (24 * GIB, 128, 512, False),
        (11 * GIB, 128, 256, False),
        (8 * GIB, 1024, 16, False),
        (2 * GIB, 128, 32, False),
        (1 * GIB, 128, 128, True),
        (GIB // 2, 512, 16, True),
        (GIB // 1024, 128, 1, True),
    ],
)
@pytest.mark.parametrize("setting", [None, True, False])
def test_a_card_gets_the_microbatch_that_it_holds(
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    length: int,
    expected: int,
    recomputed: bool,
    setting: bool | None,
) -> None:
    config = tiny("crammed", f"data.row_length={length}", f"model.max_length={length}")
    model = MaskedLM(config.model, 256)
    device = dataclasses.replace(cpu, fits_microbatch=True, recomputes=setting)
    step = step_of(model, config, SPECIALS, device)

    def peak(rows: int) -> int:
        taken = GIB // 1024 + rows * length * A_TOKEN // (8 if recomputes(step) else 1)
        if taken > memory:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return taken

    monkeypatch.setattr(step, "_peak", peak)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory, 2 * memory))
    step.prepare([8192], [0.25])
    if setting is None:
        assert step.microbatch_rows == expected
        assert recomputes(step) == recomputed
        assert recomputed or step.microbatch_rows * length >= LEAST_TOKENS
    else:
        assert recomputes(step) == setting
    if memory > GIB // 1024:
        assert peak(step.microbatch_rows) <= memory


@pytest.mark.parametrize(("sizes", "rows"), [(79, 64), (77, 32)])
def test_moments_of_a_checkpoint_are_not_counted_twice(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, sizes: int, rows: int
) -> None:
    found = []
    for resumed in (False, True):
        config = tiny("crammed")
        model = MaskedLM(config.model, 256)
        size = 4 * sum(p.numel() for p in model.parameters())
        device = dataclasses.replace(cpu, fits_microbatch=True)
        step = step_of(model, config, SPECIALS, device)
        if resumed:
            for parameter in model.parameters():
                step.optimizer.state[parameter] = {"exp_avg": torch.zeros(1)}
        free = sizes * size - (2 * size if resumed else 0)  # they have taken their part of it
        monkeypatch.setattr(step, "_peak", lambda rows, size=size: rows * size)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        step.prepare([8192], [0.25])
        found.append(step.microbatch_rows)
    assert found == [rows, rows]


def test_gradients_and_moments_that_do_not_fit_are_refused(cpu: Device) -> None:
    step, model = step_with(cpu)
    size = 4 * sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match="gradients and moments of the weights do not fit into"):
        step.fit(2 * size, lambda rows: rows)
    step.fit(100 * size, lambda rows: rows)


def test_an_optimizer_that_runs_out_of_memory_is_one_line(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    step, _ = step_with(cpu)
    step.gradients(rows_of(16), update_of(16))
    monkeypatch.setattr(step.optimizer, "step", full)
    with pytest.raises(InputError, match="an update of the weights does not fit into the memory"):
        step.apply(1.0)


@pytest.mark.parametrize("setting", [None, True, False])
def test_when_memory_runs_out_few_tokens_are_recomputed_before_they_become_fewer(
    cpu: Device, setting: bool | None
) -> None:
    rows_at_first = 4 * LEAST_TOKENS // 32
    step, _ = step_with(cpu, microbatch_rows=rows_at_first, recomputes=setting)
    seen: list[tuple[int, bool]] = []

    def full(rows: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
        seen.append((len(rows) * 32, recomputes(step)))
        raise torch.OutOfMemoryError("CUDA out of memory")

    step._loss = full
    rows = torch.zeros((rows_at_first, 32), dtype=torch.int64)
    with pytest.raises(InputError, match="not even one row"):
        step.gradients(rows, update_of(rows_at_first))
    sizes = [4 * LEAST_TOKENS, 2 * LEAST_TOKENS, LEAST_TOKENS]
    if setting is None:
        plain, again = [x for x, on in seen if not on], [x for x, on in seen if on]
        assert plain == sizes
        assert again[0] == LEAST_TOKENS
        assert again[-1] == 32
        assert [on for _, on in seen] == sorted(on for _, on in seen)  # and it stays on
    else:
        assert {on for _, on in seen} == {setting}
        assert [x for x, _ in seen[:3]] == sizes


def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, cpu: Device
) -> None:
    config = tiny("crammed", "model.layers=1000", "model.width=65536", "tokenizer.vocab_size=64")
    with pytest.raises(InputError, match=r"a model of \d+ T parameters needs [\d,]+ GiB .* lower"):
        build(config, 64, SPECIALS, cpu)
    small = tiny()
    assert bytes_per_parameter(small) == 16
    assert bytes_per_parameter(tiny("crammed", "optim.name=sgd", "train.average=0.9")) == 16
    most = 16 * sum(p.numel() for p in MaskedLM(small.model, 64).parameters())
    for bytes_here, fits in ((most, True), (most - 1, False)):
        monkeypatch.setattr(
            "crammed.training.update.memory.memory_of", lambda kind, n=bytes_here: n
        )
        if fits:
            build(small, 64, SPECIALS, cpu)
        else:
            with pytest.raises(InputError, match="needs"):
                build(small, 64, SPECIALS, cpu)
