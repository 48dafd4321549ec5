"""Attention within documents: what a token does not see, and that every way of training has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crammed.config import ModelConfig, RunConfig
from crammed.data.borders import same_document
from crammed.machine.device import Device
from crammed.training.update.objective import MaskedTokens
from crammed.training.update.step import TrainStep
from support.steps import SPECIALS, gradients_of, step_with, update_of
from support.text import tiny
from support.variants import VOCAB, any_model, configuration, random_model

SEP = SPECIALS.sep


def packed(lengths: list[int]) -> Tensor:
    """A row [1, S] of documents with so many tokens, each with [SEP] as its last."""
    draw = torch.Generator().manual_seed(0)
    row = torch.randint(5, VOCAB, (1, sum(lengths)), generator=draw)
    row[0, torch.tensor(lengths).cumsum(0) - 1] = SEP
    return row


def rows_of_documents(count: int) -> Tensor:
    """Rows [count, 32] with a [SEP] at a seventh of the places."""
    draw = torch.Generator().manual_seed(2)
    rows = torch.randint(5, 256, (count, 32), generator=draw)
    return rows.where(torch.rand(rows.shape, generator=draw) > 1 / 7, SEP)


LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=4)


OF_ONE_DOCUMENT = any_model().filter(lambda config: not config.mixer.startswith("fourier"))
"""Models that can keep documents apart: a transform over the row cannot, and refuses to."""


@settings(deadline=None)
@given(OF_ONE_DOCUMENT, LENGTHS)
def test_a_document_is_encoded_as_if_its_row_held_no_other(
    config: ModelConfig, lengths: list[int]
) -> None:
    """Alone at the same places: the others' tokens replaced, and nothing of them attended to."""
    model = random_model(config.model_copy(update={"max_length": 24})).encoder
    row = packed(lengths)
    together = model(row, same_document(row, SEP))
    begin = 0
    for length in lengths:
        own = torch.zeros(row.shape, dtype=torch.bool)
        own[0, begin : begin + length] = True
        alone = model(row.where(own, 17), own)
        torch.testing.assert_close(together[own], alone[own])
        begin += length


@settings(deadline=None)
@given(st.sampled_from(["rotary", "none"]), LENGTHS)
def test_with_relative_positions_a_document_may_stand_anywhere(
    positions: str, lengths: list[int]
) -> None:
    model = random_model(configuration(positions=positions)).encoder
    row = packed(lengths)
    together = model(row, same_document(row, SEP)).split(lengths, dim=1)
    for found, own in zip(together, row.split(lengths, dim=1), strict=True):
        # Tables of angles are float32.
        torch.testing.assert_close(found, model(own), rtol=1e-4, atol=1e-4)


def test_without_the_mask_documents_of_a_row_see_each_other() -> None:
    model = random_model(configuration()).encoder
    row = packed([5, 6])
    first, alone = model(row)[:, :5], model(row[:, :5])
    assert (first - alone).norm() > 0.1 * alone.norm()


def documents_one_by_one(step: TrainStep, rows: Tensor) -> Tensor:
    """The summed loss of rows [B, 32], document by document: slow, and without any mask."""
    assert isinstance(step.objective, MaskedTokens)
    masked = step.objective._mask(rows, torch.arange(len(rows)), 8)
    total = torch.zeros(())
    for row, ids, places in zip(rows, masked.ids, masked.positions, strict=True):
        ends = [place + 1 for place, token in enumerate(row.tolist()) if token == SEP]
        for begin, end in zip([0, *ends], [*ends, len(row)], strict=True):
            chosen = places[(places >= begin) & (places < end)]
            if len(chosen):
                logits = step.model(ids[None, begin:end], chosen[None] - begin)[0]
                total = total + F.cross_entropy(logits, row[chosen], reduction="sum")
    return total


def config_of(attention: str) -> RunConfig:
    """With weights so large that it matters what a token attends to."""
    return tiny("crammed", f"train.attention={attention}", "model.init_std=0.2")


def test_an_update_is_that_of_its_documents_one_by_one(cpu: Device) -> None:
    config = config_of("document")
    rows = rows_of_documents(6)
    step, _ = step_with(cpu, config, microbatch_rows=4)
    loss = step.gradients(rows, update_of(6))
    slow, _ = step_with(cpu, config)
    expected = documents_one_by_one(slow, rows) / (8 * 6)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients_of(step), gradients_of(slow), rtol=1e-4, atol=1e-6)
    whole, _ = step_with(cpu, config_of("row"))
    whole.gradients(rows, update_of(6))
    assert (gradients_of(whole) - gradients_of(slow)).norm() > 0.1 * gradients_of(slow).norm()


WAYS: list[dict[str, Any]] = [
    {"recomputes": True},
    {"compile": True, "recomputes": True},
    {"compile": True, "dtype": torch.bfloat16},
]


@pytest.mark.parametrize("changes", WAYS, ids=lambda c: "-".join(c))
def test_every_way_of_training_attends_within_documents(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    config = config_of("document")
    rows = rows_of_documents(8)
    plain, _ = step_with(cpu, config)
    other, _ = step_with(cpu, config, **changes)
    expected, loss = (step.gradients(rows, update_of(8)) for step in (plain, other))
    error = 1e-4 if "dtype" not in changes else 0.02
    assert loss.item() == pytest.approx(expected.item(), rel=error)
    difference = (gradients_of(other) - gradients_of(plain)).norm()
    assert difference < 5 * error * gradients_of(plain).norm()
