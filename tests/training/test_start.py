"""What a run does on its budget before the first update."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crammed.budget import Ledger
from crammed.config import GradInitConfig, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.errors import StoppedByPolicy
from crammed.machine.device import Device
from crammed.model import cooccurrence
from crammed.model.cooccurrence import factorisation_flops
from crammed.model.count import train_flops_per_token
from crammed.optim.build import update_flops
from crammed.planning import parts
from crammed.planning.forecast import forecast
from crammed.planning.parts import PartTimes, measure_speed
from crammed.terminal.progress import SILENT, Progress
from crammed.training import start
from crammed.training.plan import Planner
from crammed.training.start import rows_to_count
from crammed.training.update.build import new_model
from crammed.training.update.step import TrainStep
from support.costs import play_costs
from support.text import FakeClock, tiny
from support.training import train, train_in_two

START, RANDOM = "model.embedding_start=cooccurrence", "model.embedding_start=random"
ROW = 32


def asked(limit: str, *more: str) -> RunConfig:
    return tiny("crammed", START, *more, budget={"limit": limit})


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray[Any, Any]]:
    """The rows that are counted, each time that a run or a plan counts some."""
    rows: list[np.ndarray[Any, Any]] = []
    count = cooccurrence.neighbour_counts

    def note(ids: np.ndarray[Any, Any], vocab_size: int) -> np.ndarray[Any, Any]:
        rows.append(ids)
        return count(ids, vocab_size)

    monkeypatch.setattr(cooccurrence, "neighbour_counts", note)
    return rows


def first_weights(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The weights at the first update of each run."""
    seen: list[dict[str, Tensor]] = []
    prepare = TrainStep.prepare

    def look(step: TrainStep, *arguments: Any) -> None:
        seen.append({name: p.detach().clone() for name, p in step.model.named_parameters()})
        prepare(step, *arguments)

    monkeypatch.setattr(TrainStep, "prepare", look)
    return seen


def test_a_run_begins_with_its_first_rows_and_says_so(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    noted: list[np.ndarray[Any, Any]],
) -> None:
    seen, said = first_weights(monkeypatch), io.StringIO()
    config = asked("4updates")
    train(config, corpus, tmp_path / "run", cpu, Progress(said))
    words = "embeddings  initialised from co-occurrence in 1,024 tokens of text  ("
    assert words in said.getvalue()
    np.testing.assert_array_equal(noted[0], RowStream(corpus, 0, config.order).read(0, 4 * 8))
    before = dict(new_model(config, corpus.vocab_size, cpu.torch).named_parameters())
    table, random = seen[0].pop("encoder.tokens.weight"), before.pop("encoder.tokens.weight")
    assert all(torch.equal(seen[0][name], weight) for name, weight in before.items())
    known = torch.zeros(corpus.vocab_size, dtype=torch.bool)
    known[noted[0].ravel()] = True
    assert torch.equal(table[~known], random[~known])
    assert not torch.isclose(table[known], random[known]).all(1).any()
    assert table[known].square().mean().sqrt().item() == pytest.approx(0.1, rel=1e-4)
    train(config, corpus, tmp_path / "again", cpu)
    assert torch.equal(seen[1]["encoder.tokens.weight"], table)


@pytest.mark.parametrize(("std", "found"), [("null", 0.03), ("0.25", 0.25)])
def test_the_start_has_the_scale_of_the_embeddings(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    noted: list[np.ndarray[Any, Any]],
    std: str,
    found: float,
) -> None:
    seen = first_weights(monkeypatch)
    config = asked("1updates", f"model.embedding_std={std}", "model.init_std=0.03")
    train(config, corpus, tmp_path / "run", cpu)
    measure_speed(config, corpus, cpu, 0.0, SILENT)
    for weights, rows in zip(seen, noted, strict=True):
        table = weights["encoder.tokens.weight"]
        known = torch.zeros(len(table), dtype=torch.bool)
        known[rows.ravel()] = True
        assert table[known].square().mean().sqrt().item() == pytest.approx(found, rel=1e-4)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [
        ("5updates", 5 * 8 * ROW),
        ("1000tok", 3 * 8 * ROW),
        ("1e9tok", 200 * ROW),  # each row once
        ("100s", 5_000_000 // ROW * ROW),
        ("0.01s", 480),
        ("24h", 16_000_000),
        ("24h, half of the text", 100 * ROW),
    ],
)
def test_no_more_is_counted_than_the_run_reads(limit: str, tokens: int) -> None:
    limit, _, half = limit.partition(",")
    config = asked(limit, f"budget.most_epochs={0.5 if half else 'null'}")
    rows = 200 if limit == "1e9tok" or half else 10**7
    planner = Planner(config, 256, rows, Ledger(()))
    assert rows_to_count(config, rows, planner) * ROW == tokens


@pytest.mark.parametrize(
    ("begin", "words", "seconds"),
    [
        ("begin_with_neighbours", (START,), 7.0),
        ("begin_with_scales", ("train.grad_init.updates=3", RANDOM), 4.0 * 3),
    ],
)
def test_a_budget_of_time_pays_for_the_start(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    begin: str,
    words: tuple[str, ...],
    seconds: float,
) -> None:
    clock, speed = FakeClock(), PartTimes(0.5, 0.0, 2.0, None, 8)
    play_costs(monkeypatch, clock, speed)

    def lasting(_: object, given: object, *__: object) -> Tensor:
        clock.now += 4.0 * given.updates if isinstance(given, GradInitConfig) else 7.0
        return torch.ones(1)

    monkeypatch.setattr(start, begin, lasting)
    monkeypatch.setattr(parts, begin, lasting)
    more = ("batch.rows=8", "train.heldout_every=null")
    config = tiny("crammed", *words, *more, budget={"limit": "60s"})
    trained = train(config, corpus, tmp_path / "run", cpu, SILENT, clock)
    assert trained.accounts["compile"] == seconds + 2.0
    # The last would end on the limit itself.
    assert trained.work.updates == (60 - seconds - 2) / 0.5 - 1
    measured = measure_speed(config, corpus, cpu, 5.0, SILENT, clock)
    assert (measured.start, measured.compile) == (seconds, 2.0)
    assert measure_speed(config, None, cpu, 5.0, SILENT, clock).start == seconds
    planned = forecast(config, corpus.vocab_size, corpus.rows, measured)
    assert abs(planned["updates"] - trained.work.updates) <= 1


PRICED = ("batch.rows=8", "masking.rate=0.25")


def flops_of(corpus: Corpus, *more: str) -> tuple[float, float]:
    """FLOPs before the first update, and of an update, of a run with the values `PRICED`."""
    plain = tiny("crammed", *PRICED, *more)
    one = 8 * ROW * train_flops_per_token(plain.model, corpus.vocab_size, ROW, 8)
    one += update_flops(plain.model, corpus.vocab_size, plain.optim)
    width = plain.model.embedding_width or plain.model.width
    return factorisation_flops(corpus.vocab_size, width), one


@pytest.mark.parametrize("width", [None, 8])
def test_a_budget_of_flops_pays_for_the_products(
    tmp_path: Path, corpus: Corpus, cpu: Device, width: int | None
) -> None:
    own = () if width is None else (f"model.embedding_width={width}",)
    before, one = flops_of(corpus, *own)
    config = asked(f"{before + 3.5 * one}flop", *PRICED, *own)
    trained = train(config, corpus, tmp_path / "run", cpu)
    assert trained.work.updates == 3
    assert trained.u == pytest.approx((before + 3 * one) / (before + 3.5 * one))


def test_a_resumed_run_does_not_begin_again(
    tmp_path: Path,
    corpus: Corpus,
    cpu: Device,
    monkeypatch: pytest.MonkeyPatch,
    noted: list[np.ndarray[Any, Any]],
) -> None:
    before, one = flops_of(corpus)
    values = ("train.checkpoint_seconds=1e-9", "model.dropout=0.1")
    config = asked(f"{before + 6.5 * one}flop", *PRICED, *values)
    whole = train(config, corpus, tmp_path / "whole", cpu).model.state_dict()
    assert len(noted) == 1
    resumed = train_in_two(config, corpus, tmp_path / "run", cpu, monkeypatch, 4).model.state_dict()
    assert len(noted) == 2
    assert all(torch.equal(weight, whole[name]) for name, weight in resumed.items())


def test_a_loss_is_judged_by_the_progress_of_training(
    tmp_path: Path, corpus: Corpus, cpu: Device
) -> None:
    before, one = flops_of(corpus)
    rule = ("train.early_stop.after=0.4", "train.early_stop.loss=0.1", "train.log_seconds=1e-9")
    config = asked(f"{before + 4.5 * one}flop", *PRICED, *rule)
    assert (before + one) / (before + 4.5 * one) > 0.4  # by the budget, the first would be judged
    with pytest.raises(StoppedByPolicy, match="after 44 % of the run"):
        train(config, corpus, tmp_path / "run", cpu)
