"""The loss in place against PyTorch's, alone and in updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from crammed.config import ComputeConfig, RunConfig
from crammed.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)
from crammed.machine.device import Device, choose_device
from crammed.training.update import objective
from support.steps import SPECIALS, gradients_of, rows_of, step_with, update_of
from support.text import tiny


def loss_and_gradients(function: Callable[..., Tensor], *given: Tensor | None) -> list[Tensor]:
    inputs = [None if x is None else x.detach().clone() for x in given]
    learned = [x.requires_grad_() for x in inputs[:3] if x is not None]
    loss = function(*inputs)
    return [loss.detach(), *torch.autograd.grad(0.25 * loss, learned)]


@given(
    rows=st.integers(1, 9),
    vocab=st.integers(1, 40),
    width=st.integers(1, 9),
    size=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 300.0, 1e4]),
    biased=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
@example(4, 40, 8, 1e4, True, torch.float32, 0)  # the labels' probabilities underflow
@settings(max_examples=100, deadline=None)
def test_values_and_gradients_are_those_of_pytorch(
    rows: int, vocab: int, width: int, size: float, biased: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    bias = torch.randn(vocab, dtype=dtype) if biased else None
    head = (torch.randn(rows, width, dtype=dtype), size * torch.randn(vocab, width, dtype=dtype))
    labels = torch.randint(0, vocab, (rows,))
    expected = loss_and_gradients(linear_cross_entropy_reference, *head, bias, labels)
    found = loss_and_gradients(linear_cross_entropy, *head, bias, labels)
    close = 1e-5 if dtype == torch.float32 else 1e-12
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, other.abs().max().item(), size)
        torch.testing.assert_close(one, other, rtol=0, atol=close * scale)


def test_no_second_matrix_of_logits_is_made() -> None:
    rows, vocab = 16, 512
    hidden, weight = torch.randn(rows, 4, requires_grad=True), torch.randn(vocab, 4)
    labels = torch.randint(0, vocab, (rows,))
    with torch.profiler.profile(profile_memory=True) as profile:
        linear_cross_entropy(hidden, weight, None, labels).backward()
    taken = [event.self_cpu_memory_usage for event in profile.events() or []]
    assert sum(size >= 4 * rows * vocab for size in taken) == 1


def test_a_number_that_is_none_is_seen() -> None:
    hidden = torch.tensor([[float("nan")], [1.0]])
    assert linear_cross_entropy(hidden, torch.ones(3, 1), None, torch.tensor([0, 1])).isnan()


def of_an_update(config: RunConfig, device: Device) -> tuple[Tensor, Tensor]:
    """Loss and gradients of one update in two microbatches."""
    step, _ = step_with(device, config, microbatch_rows=4)
    rows = rows_of(8)
    rows[:, 9] = SPECIALS.sep  # where a document ends
    return step.gradients(rows, update_of(8)), gradients_of(step)


BARE = ["model.decoder_bias=false", "model.head_transform=false", "model.classifier=pooler"]


@pytest.mark.parametrize("overrides", [[], BARE, ["train.attention=document"]])
def test_an_update_with_it_is_the_plain_one(cpu: Device, overrides: list[str]) -> None:
    config = tiny("crammed", *overrides)
    loss, gradients = of_an_update(config, cpu)
    plain_loss, plain = of_an_update(config, dataclasses.replace(cpu, kernels="compiler"))
    assert loss.item() == pytest.approx(plain_loss.item(), rel=1e-6)
    assert (gradients - plain).norm() < 1e-5 * plain.norm()


@pytest.mark.parametrize(
    ("overrides", "changes", "used"),
    [
        ([], {}, True),
        (["masking.z_loss=1e-4"], {}, False),
        (["model.logit_cap=15"], {}, False),
        ([], {"dtype": torch.bfloat16}, False),
        ([], {"kernels": "compiler"}, False),
        ([], {"kernels": "triton"}, False),
    ],
)
def test_where_it_is_used(
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    changes: dict[str, Any],
    used: bool,
) -> None:
    calls = []

    def counted(*given: Any) -> Tensor:
        calls.append(given)
        return linear_cross_entropy(*given)

    monkeypatch.setattr(objective, "linear_cross_entropy", counted)
    of_an_update(tiny("crammed", *overrides), dataclasses.replace(cpu, **changes))
    assert bool(calls) is used


def test_the_compiler_and_other_devices_do_without(cpu: Device) -> None:
    assert choose_device(ComputeConfig(device="cpu", dtype="float32")).in_place
    assert not dataclasses.replace(cpu, compile=True).in_place
    assert not dataclasses.replace(cpu, torch=torch.device("cuda")).in_place
