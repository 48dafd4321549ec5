"""Dropout of parts, layer drop, and what stands for a text, against plain twins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from crammed.machine.device import Device
from crammed.model.classifiers import POOLINGS, SequenceClassifier
from crammed.training.update.build import build
from support.steps import SPECIALS, rows_of, update_of
from support.text import tiny
from support.variants import CHOICES, VOCAB, configuration, random_model, some_ids

DROPS = ("dropout", "embedding_dropout", "attention_dropout", "layer_drop")


def test_layer_drop_skips_whole_layers_of_some_rows_in_training_only() -> None:
    model = random_model(configuration(layer_drop=0.5, layers=1, final_norm=True)).encoder
    ids = some_ids(40)
    prepared = model.prepare(model.tokens(ids), None, None, ids)
    full, skipped = model.through_layers(*prepared), model.final_norm(prepared[0])
    places = torch.tensor([[2, 0]] * 40)
    for positions in (None, places):
        torch.manual_seed(0)
        found = model.train().through_layers(*prepared, positions=positions)
        went = [full, skipped]
        if positions is not None:
            went = [x.gather(1, places[..., None].expand(-1, -1, x.shape[-1])) for x in went]
        same = [torch.isclose(found, x).flatten(1).all(1) for x in went]
        assert torch.equal(same[0], ~same[1])
        assert 10 < int(same[0].sum()) < 30
        assert torch.equal(model.eval().through_layers(*prepared), full)


@pytest.mark.parametrize("name", DROPS)
def test_each_dropout_acts_alone_in_training_and_not_in_fine_tuning(name: str) -> None:
    fields: dict[str, Any] = {"dropout": 0.0, name: 0.5}
    config = configuration(**fields)
    model, ids = random_model(config, dtype=torch.float32), some_ids(8)
    expected = model(ids)
    assert torch.equal(random_model(configuration(dropout=0.0), dtype=torch.float32)(ids), expected)
    assert not torch.equal(model.train()(ids), expected)
    kept = configuration(dropout=0.5, embedding_dropout=0.0, attention_dropout=0.0)
    assert [kept.embedding_dropout, kept.attention_dropout] == [0.0, 0.0]
    assert config.with_dropout(0.1) == configuration(dropout=0.1)
    assert configuration(dropout=0.0).dropouts() == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", DROPS)
def test_draws_depend_on_the_number_of_the_update_alone(name: str, cpu: Device) -> None:
    config = tiny("crammed", f"model.{name}=0.5")
    steps = [build(config, 256, SPECIALS, cpu) for _ in range(2)]
    assert [step.lanes.count for step in steps] == [1, 1]
    torch.manual_seed(1)
    steps[0].gradients(rows_of(8), update_of(8, 0))
    steps[0].discard()
    losses = [step.gradients(rows_of(8), update_of(8, 1)).item() for step in steps]
    assert losses[0] == losses[1]
    assert (
        losses[0] != build(config, 256, SPECIALS, cpu).gradients(rows_of(8), update_of(8, 2)).item()
    )


@pytest.mark.parametrize("scope", CHOICES["scope"])
def test_padding_before_a_text_changes_nothing(scope: str) -> None:
    """A token that may attend to nothing else attends to itself: its NaN would spread."""
    model = random_model(configuration("crammed-2022", scope=scope, positions="none"))
    ids = some_ids(2, 9)
    padded = torch.cat((torch.full((2, 4), 17), ids), 1)
    mask = torch.arange(13).expand(2, 13) >= 4
    torch.testing.assert_close(model(padded, mask=mask)[:, 4:], model(ids))


def test_what_stands_for_a_text() -> None:
    assert set(CHOICES["pooling"]) == {"first", *POOLINGS}
    twins: dict[str, Callable[[list[float]], float]] = {
        "first": lambda values: values[0],
        "mean": lambda values: sum(values) / len(values),
        "max": max,
        "log-sum-exp": lambda values: math.log(sum(map(math.exp, values))),
    }
    hidden = torch.randn((2, 5, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    for name, twin in twins.items():
        model = SequenceClassifier(configuration("bert-base", pooling=name), VOCAB, 2)
        for given, lengths in ((None, (5, 5)), (mask, (5, 2))):
            found = model.pooled(hidden, given).tolist()
            for row, length in enumerate(lengths):
                expected = [twin(hidden[row, :length, d].tolist()) for d in range(3)]
                assert found[row] == pytest.approx(expected)
