"""A second pass at weights that are moved along their gradient (SAM)."""

from __future__ import annotations

import pytest
import torch

from crammed.budget import Ledger, Work
from crammed.machine.device import Device
from crammed.optim.build import update_flops
from crammed.training.plan import Planner
from crammed.training.signals import UpdateLeft
from crammed.training.update.build import build
from support.steps import SPECIALS, rows_of, update_of, vector
from support.text import tiny

SHARP = tiny("crammed", "train.sharpness=0.5", "model.dropout=0.1")
PLAIN = SHARP.model_copy(update={"train": SHARP.train.model_copy(update={"sharpness": None})})


def test_gradients_are_those_of_the_moved_weights_with_the_same_masks_and_dropout(
    cpu: Device,
) -> None:
    sharp, plain = build(SHARP, 256, SPECIALS, cpu), build(PLAIN, 256, SPECIALS, cpu)
    rows, update = rows_of(8), update_of(8, 5)
    before = vector(sharp.parameters)
    loss = sharp.gradients(rows, update)
    assert torch.equal(loss, plain.gradients(rows, update))
    assert torch.equal(vector(sharp.parameters), before)
    found = [p.grad for p in plain.parameters]
    norm = sum(float(g.double().square().sum()) for g in found if g is not None) ** 0.5
    for parameter, gradient in zip(plain.parameters, found, strict=True):
        if gradient is not None:
            parameter.data += (0.5 / norm * gradient.double()).float()
    plain.discard()
    assert float(plain.gradients(rows, update)) > float(loss)
    for parameter, other in zip(sharp.parameters, plain.parameters, strict=True):
        assert (parameter.grad is None) == (other.grad is None)
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_weights_are_back_when_the_second_pass_is_left(cpu: Device) -> None:
    step = build(SHARP, 256, SPECIALS, cpu)
    before, calls = vector(step.parameters), 0
    step.microbatch_rows = 3

    def leave() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:  # three microbatches in each pass
            raise UpdateLeft

    step.before_microbatch = leave
    with pytest.raises(UpdateLeft):
        step.gradients(rows_of(8), update_of(8))
    assert torch.equal(vector(step.parameters), before)


def test_a_process_without_rows_of_the_update_has_no_gradients(cpu: Device) -> None:
    step = build(SHARP, 256, SPECIALS, cpu)
    assert float(step.gradients(rows_of(8)[:0], update_of(1))) == 0.0
    assert all(parameter.grad is None for parameter in step.parameters)


def test_both_passes_are_counted() -> None:
    costs = [Planner(config, 256, None, Ledger(())).next(Work()) for config in (SHARP, PLAIN)]
    own = update_flops(SHARP.model, 256, SHARP.optim)
    flops = [update.cost.flops - own for update in costs if update is not None]
    assert flops[0] == 2 * flops[1] > 0
    assert SHARP.state_per_parameter() == PLAIN.state_per_parameter() + 1
