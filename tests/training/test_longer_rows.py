"""Rows that grow longer in training: short ones are trained as if the corpus had them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crammed.budget import Ledger, Work
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.count import train_flops_per_token
from crammed.optim.build import update_flops
from crammed.training.plan import Planner
from crammed.training.update.build import build
from crammed.training.update.planned import Update
from support.steps import SPECIALS, rows_of, same, update_of
from support.text import tiny
from support.training import train

LONGER = ("train.lengthen_at=[0.25, 0.5]", "model.layers=2")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("train.attention=document", "masking.unit=token"),
        ("model.positions=learned", "model.attention_start=random"),
        ("model.positions=alibi", "model.attention_start=random"),
        (
            *("model.mixer=fourier", "model.positions=learned", "model.attention_start=random"),
            *("model.qk_norm=none", "model.qkv_bias=false"),
        ),
    ],
)
def test_pieces_are_rows_of_their_own(words: tuple[str, ...], cpu: Device) -> None:
    long = build(tiny("crammed", *LONGER, *words), 256, SPECIALS, cpu)
    short = build(
        tiny("crammed", "data.row_length=8", "model.layers=2", *words), 256, SPECIALS, cpu
    )
    assert same(long.parameters, short.parameters)
    long.microbatch_rows, short.microbatch_rows = 3, 12
    rows = rows_of(8)
    rows[:, ::7] = SPECIALS.sep
    update = Update(3, 5, 8, 1.0, 0.25, Work())
    loss = long.gradients(rows, replace(update, pieces=4))
    theirs = short.gradients(rows.reshape(32, 8), replace(update, first_row=20, rows=32))
    assert torch.equal(loss, theirs)
    for parameter, other in zip(long.parameters, short.parameters, strict=True):
        assert (parameter.grad is None) == (other.grad is None)
        assert parameter.grad is None or torch.equal(parameter.grad, other.grad)  # type: ignore[arg-type]
    whole = build(tiny("crammed", "model.layers=2", *words), 256, SPECIALS, cpu)
    whole.microbatch_rows = 3
    long.discard()
    assert torch.equal(long.gradients(rows, update), whole.gradients(rows, update))


def test_an_update_costs_what_its_rows_cost() -> None:
    config = tiny("crammed", *LONGER, "budget.limit=8updates", "batch.rows=8", "batch.ramp=0.0")
    planner, work, found = Planner(config, 256, None, Ledger(())), Work(), []
    while (update := planner.next(work)) is not None:
        own = update_flops(config.model, 256, config.optim)
        found.append((update.pieces, update.cost.tokens, update.cost.flops - own))
        work += update.cost
    assert [pieces for pieces, _, _ in found] == [4, 4, 2, 2, 1, 1, 1, 1]
    for pieces, tokens, flops in found:
        length = 32 // pieces
        predicted = round(config.masking.rate * length)
        assert tokens == 8 * 32
        assert flops == tokens * train_flops_per_token(config.model, 256, length, predicted)
    assert config.lengths() == [32, 16, 8]


def test_a_run_ends_with_whole_rows(corpus: Corpus, cpu: Device, tmp_path: Path) -> None:
    limits = ("budget.limit=6updates", "train.heldout_every=0.5", "batch.rows=8", "batch.ramp=0.0")
    made = {
        words: train(tiny("crammed", *limits, *words), corpus, tmp_path / str(len(words)), cpu)
        for words in ((), ("train.lengthen_at=[0.9, 0.9]",))
    }
    plain, longer = made.values()
    assert plain.work.tokens == longer.work.tokens
    assert plain.work.flops > longer.work.flops
    assert not same(plain.model.parameters(), longer.model.parameters())


def test_every_length_is_compiled_before_the_first_update(cpu: Device) -> None:
    step = build(tiny("crammed", *LONGER), 256, SPECIALS, replace(cpu, compile=True))
    seen = set()

    def loss(rows: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
        seen.add((tuple(rows.shape), len(numbers), count))
        return step.objective.loss(rows, numbers, count)

    step._loss = loss
    step.prepare([8], [0.25])
    compiled = set(seen)
    for pieces in (1, 2, 4):
        step.gradients(rows_of(8), replace(update_of(8), pieces=pieces))
    assert seen == compiled == {((8, 32), 8, 8), ((16, 16), 16, 4), ((32, 8), 32, 2)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.lengthen_at=[0.5, 0.1]",), "increasing numbers above 0"),
        (("train.lengthen_at=[0.1, 0.2, 0.3]",), "begins with 1/8 of rows of 32 tokens"),
        (("train.lengthen_at=[0.1, 0.2]", "masking.rate=0.05"), "masking 0.05 of 8 tokens"),
        (("train.lengthen_at=[0.5]", "train.drop_tokens=0.5"), "leave one of them out"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tiny("crammed", *words)
