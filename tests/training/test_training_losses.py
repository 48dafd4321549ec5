"""Every training loss against a twin in plain loops, and in an update."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crammed.config import RunConfig
from crammed.config.kinds import kinds_of
from crammed.config.losses import BalancedConfig
from crammed.machine.device import Device
from crammed.training.update.build import build
from crammed.training.update.losses import LOSSES, distance, summed_loss, target_weights
from support.steps import SPECIALS, rows_of, update_of
from support.text import tiny

KINDS = kinds_of(RunConfig)["loss"].kinds


def negative_log(logits: list[float], label: int) -> float:
    return math.log(sum(math.exp(x - logits[label]) for x in logits))


def smoothed(x: list[float], y: int) -> float:
    return 0.8 * negative_log(x, y) + sum(0.2 / len(x) * negative_log(x, v) for v in range(len(x)))


def errors(x: list[float], y: int, power: int) -> float:
    wanted = [3.0 if v == y else 0.0 for v in range(len(x))]
    weights = [2.0 if v == y else 1.0 for v in range(len(x))]
    each = (w * abs(a - b) ** power for w, a, b in zip(weights, x, wanted, strict=True))
    return sum(each) / len(x)


TWINS: list[tuple[str, dict[str, float], Callable[[list[float], int], float]]] = [
    ("cross-entropy", {}, negative_log),
    ("cross-entropy", {"smoothing": 0.2}, smoothed),
    (
        "focal",
        {"gamma": 1.5},
        lambda x, y: (1 - math.exp(-negative_log(x, y))) ** 1.5 * negative_log(x, y),
    ),
    ("incorrect-only", {}, lambda x, y: negative_log(x, y) * (max(x) != x[y])),
    ("squared", {"target": 3.0, "weight": 2.0}, lambda x, y: errors(x, y, 2)),
    ("absolute", {"target": 3.0, "weight": 2.0}, lambda x, y: errors(x, y, 1)),
]


@pytest.mark.parametrize(("name", "options", "twin"), TWINS)
def test_equals_its_twin(
    name: str, options: dict[str, float], twin: Callable[[list[float], int], float]
) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn((9, 6), dtype=torch.float64, generator=draw)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, int(logits[8].argmax())])
    config = KINDS[name](**options)
    found = LOSSES[name](logits, labels, config)
    expected = sum(map(twin, logits.tolist(), labels.tolist()))
    assert found.item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(
        lambda x: LOSSES[name](x, labels, config), logits.requires_grad_()
    )


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=20), st.floats(0.01, 1.0))
def test_weights_fall_with_frequency_and_are_1_on_average_over_the_text(
    counts: list[int], power: float
) -> None:
    shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    weights = target_weights(shares.log(), power)
    assert (shares * weights).sum().item() == pytest.approx(1.0)
    for one, other in itertools.pairwise(range(len(counts))):
        ratio = (counts[other] / counts[one]) ** power
        assert (weights[one] / weights[other]).item() == pytest.approx(ratio)


def test_the_balanced_loss_equals_its_twin() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn((9, 6), dtype=torch.float64, generator=draw)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 1])
    weights = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0, 3.0], dtype=torch.float64)
    config = tiny("crammed", "loss.name=balanced")
    pairs = list(zip(logits.tolist(), labels.tolist(), strict=True))
    for each, own in ((weights, weights.tolist()), (None, [1.0] * 6)):
        expected = sum(own[y] * negative_log(x, y) for x, y in pairs)
        assert summed_loss(logits, labels, config, each).item() == pytest.approx(expected)
    known = labels < 5  # the last output stands for no token
    expected = sum(weights[y].item() * negative_log(x, y) for x, y in pairs if y < 5)
    found = summed_loss(logits[known], labels[known], config, weights[:5])
    assert found.item() == pytest.approx(expected)
    z_loss = tiny("crammed", "loss.name=balanced", "masking.z_loss=0.1")
    with_it = summed_loss(logits, labels, z_loss, weights).item()
    without = summed_loss(logits, labels, config, weights).item()
    assert with_it - without == pytest.approx(0.1 * logits.logsumexp(-1).square().sum().item())


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_certain_prediction_has_hardly_a_focal_gradient(gamma: float) -> None:
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    loss = LOSSES["focal"](logits, torch.tensor([0]), KINDS["focal"](gamma=gamma))
    loss.backward()
    assert loss == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-30


def test_the_distance_moves_the_hidden_states_alone() -> None:
    hidden, table = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    labels = torch.tensor([4, 0, 4])
    total = distance(hidden, table, labels)
    expected = sum((hidden[n] - table[y]).square().sum() for n, y in enumerate(labels.tolist()))
    torch.testing.assert_close(total, expected)
    total.backward()
    assert hidden.grad is not None
    assert table.grad is None


@pytest.mark.parametrize("name", KINDS)
def test_a_model_learns_by_it_and_every_option_changes_something(name: str, cpu: Device) -> None:
    changes = [f"loss.{key}=0.4" for key in KINDS[name].model_fields if key != "name"]
    found = []
    for words in ((), *((change,) for change in changes)):
        plain = ("model.decoder_bias=false", "model.decoder_bias_start=zero")
        config = tiny("crammed", f"loss.name={name}", *plain, *words)
        step = build(config, 256, SPECIALS, cpu)
        if isinstance(config.loss, BalancedConfig):
            shares = torch.linspace(1.0, 2.0, 256).log_softmax(-1)
            step.objective.weights = target_weights(shares, config.loss.power)
        losses = []
        for _ in range(8):
            losses.append(step.gradients(rows_of(8), update_of(8)).item())
            step.apply(1.0)
        assert losses[-1] < losses[0]
        found.append(losses)
    assert len({tuple(losses) for losses in found}) == len(found)


def test_losses_are_those_that_can_be_named() -> None:
    assert KINDS.keys() == LOSSES.keys() | {"balanced", "embedding"}
