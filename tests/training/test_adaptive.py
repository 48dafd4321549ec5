"""Batches whose rows follow the gradients, against a slow twin, and through whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from crammed.config.training import AdaptiveConfig, BatchConfig
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.runs.logs import read_metrics
from crammed.training.plan import refuse_too_little
from crammed.training.update import step as step_module
from crammed.training.update.build import build
from crammed.training.update.spread import TESTS, Pieces
from support.steps import SPECIALS, needs_compiler, rows_of, same, update_of
from support.text import tiny
from support.training import train, train_in_two

PLAIN = ("model.attention_start=random", "model.embedding_std=null")
TWOS = ("batch.rows=12", "batch.quantum=2")


def values_of(pieces: list[list[Tensor]]) -> dict[str, float]:
    """What each test compares with its threshold, from the gradients of each piece."""
    count = len(pieces)
    means = [torch.stack(grads).mean(0) for grads in zip(*pieces, strict=True)]
    variances = [
        sum((piece[n] - mean).square().sum().item() for piece in pieces) / (count - 1)
        for n, mean in enumerate(means)
    ]
    lengths = [mean.square().sum().item() for mean in means]
    others = [torch.stack(grads).mean(0) for grads in zip(*pieces[:-1], strict=True)]
    inner = sum((a * b).sum().item() for a, b in zip(pieces[-1], others, strict=True))
    square = sum(each.square().sum().item() for each in others)
    cosines = [
        torch.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()
        for a, b in zip(pieces[-1], others, strict=True)
    ]
    ratios = [math.sqrt(v) / (m + 1e-6) for v, m in zip(variances, lengths, strict=True)]
    average = sum(ratios) / len(ratios)
    return {
        "norm": sum(variances) / count / sum(lengths),
        "inner-product": (inner - square) ** 2 / (count - 1) / square**2,
        "cosine": sum(cosines) / len(cosines),
        "covariance": (1 + 1 / (4 * count)) * average / count / 100,
    }


@pytest.mark.parametrize("name", get_args(AdaptiveConfig.model_fields["test"].annotation))
@pytest.mark.parametrize("count", [2, 5])
def test_an_update_is_tested_as_its_twin(cpu: Device, name: str, count: int) -> None:
    rows, pieces = 5 + rows_of(2 * count) % 8, []  # whose gradients point where others do
    for n in range(count):  # each by itself, as an update of its own
        step = build(tiny("crammed", *PLAIN), 256, SPECIALS, cpu)
        step.gradients(rows[2 * n : 2 * n + 2], replace(update_of(2), first_row=2 * n))
        pieces.append([p.grad.double() for p in step.parameters if p.grad is not None])
    value = values_of(pieces)[name]
    assert value > 0.0
    for factor in (0.999, 1.001):
        words = (f"batch.adaptive.test={name}", f"batch.adaptive.threshold={factor * value}")
        step = build(tiny("crammed", *PLAIN, *TWOS, *words), 256, SPECIALS, cpu)
        step.gradients(rows, update_of(2 * count))
        assert step.spread is not None
        assert step.spread.enough == ((factor > 1) != (name == "cosine"))
    for parameter, grads in zip(step.parameters, zip(*pieces, strict=True), strict=True):
        assert parameter.grad is not None
        mean = torch.stack(grads).mean(0)
        torch.testing.assert_close(parameter.grad.double(), mean, rtol=1e-3, atol=1e-5)


def test_what_is_tested_depends_on_no_device(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the rows that fit at once, nor on lanes, nor on the scale of float16's loss."""
    seen: list[Pieces] = []

    def noted(pieces: Pieces, threshold: float) -> Tensor:
        seen.append(pieces)
        return torch.tensor(True)

    monkeypatch.setitem(TESTS, "norm", noted)
    for lanes, rows, kind in (
        (1, 12, torch.float32),
        (2, 1, torch.float32),
        (1, 3, torch.float16),
    ):
        words = (*PLAIN, *TWOS, "batch.adaptive.test=norm", f"compute.lanes={lanes}")
        device = replace(cpu, microbatch_rows=rows, dtype=kind)
        build(tiny("crammed", *words), 256, SPECIALS, device).gradients(rows_of(12), update_of(12))
    for other, tolerance in zip(seen[1:], (1e-4, 0.05), strict=True):
        assert other.count == seen[0].count == 6
        for name in ("variances", "means", "last", "others"):
            one, two = (getattr(each, name).sum().item() for each in (seen[0], other))
            assert two == pytest.approx(one, rel=tolerance), name


def test_rows_go_up_and_down_between_two_pieces_and_all() -> None:
    batch = BatchConfig(rows=10, quantum=2, adaptive=AdaptiveConfig())
    rows, seen = batch.rows_after(None, enough=True), []
    for enough in (True, False, False, False, False, True):
        seen.append(rows)
        rows = batch.rows_after(rows, enough=enough)
    assert [*seen, rows] == [4, 4, 6, 8, 10, 10, 8]
    assert BatchConfig(rows=10).rows_after(None, enough=False) is None


@pytest.mark.parametrize(
    ("threshold", "expected"), [(1e-9, [4, 6, 8, 10, 12, 12]), (1e9, [4, 4, 4, 4, 4, 4])]
)
def test_a_run_follows_its_gradients(
    corpus: Corpus, cpu: Device, tmp_path: Path, threshold: float, expected: list[int]
) -> None:
    words = ("budget.limit=6updates", "train.log_seconds=1e-9")
    config = tiny("crammed", *TWOS, f"batch.adaptive.threshold={threshold}", *words)
    train(config, corpus, tmp_path / "run", cpu)
    points = read_metrics(tmp_path / "run")
    assert [point["batch_rows"] for point in points] == expected
    assert points[-1]["tokens"] == 32 * sum(expected)


def test_a_run_that_is_stopped_goes_on_with_the_same_rows(
    corpus: Corpus, cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("budget.limit=8updates", "train.log_seconds=1e-9", "train.checkpoint_seconds=1e-9")
    config = tiny("crammed", *TWOS, "batch.adaptive.threshold=0.02", *words)
    whole = train(config, corpus, tmp_path / "whole", cpu).model
    parts = train_in_two(config, corpus, tmp_path / "parts", cpu, monkeypatch, 5).model
    rows = [[p["batch_rows"] for p in read_metrics(tmp_path / n)] for n in ("whole", "parts")]
    assert rows[0] == rows[1]
    assert max(rows[0]) > 6
    assert same(whole.parameters(), parts.parameters())


def test_a_small_first_update_is_enough() -> None:
    """The ramp is 0 here, so that forecasts assume whole batches from the start."""
    words = (*TWOS, "budget.limit=130tok")
    refuse_too_little(tiny("crammed", *words, "batch.adaptive.test=norm"))
    with pytest.raises(InputError, match="ends before one update of 12 rows"):
        refuse_too_little(tiny("crammed", *words))


def test_pieces_that_do_not_fit_are_refused(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("crammed", *TWOS, "batch.adaptive.test=norm")
    step = build(config, 256, SPECIALS, cpu)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(step, "_loss", full)
    with pytest.raises(
        InputError, match=r"not even batch\.quantum=2 rows of 32 tokens fit .*: lower that, or"
    ):
        step.gradients(rows_of(8), update_of(8))
    assert step.recomputes


def test_several_processes_are_refused(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "world_size", lambda: 2)
    with pytest.raises(InputError, match=r"batch\.adaptive needs a single process"):
        build(tiny("crammed", *TWOS, "batch.adaptive.test=norm"), 256, SPECIALS, cpu)


@pytest.mark.long
@needs_compiler
def test_the_piece_is_the_only_shape_that_is_compiled(cpu: Device) -> None:
    config = tiny("crammed", *TWOS, "batch.adaptive.test=norm")
    step = build(config, 256, SPECIALS, replace(cpu, compile=True))
    step.prepare(config.batch.row_counts(), [0.25])
    step._loss = torch.compiler.set_stance("fail_on_recompile")(step._loss)
    for count in (4, 8, 12):
        step.gradients(rows_of(count), update_of(count))
        step.apply(1.0)
