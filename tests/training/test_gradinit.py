"""Scales of the initial weights that are learned before the first update."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crammed.budget import Work
from crammed.config import GradInitConfig, RunConfig
from crammed.data.corpus import Corpus, RowStream
from crammed.data.masking import predicted_positions
from crammed.export.huggingface import export
from crammed.machine.device import Device
from crammed.model.count import train_flops_per_token
from crammed.model.trained import trained_model
from crammed.planning.parts import measure_speed
from crammed.terminal.progress import SILENT, Progress
from crammed.training import start
from crammed.training.gradinit import (
    LEAST,
    PASSES,
    begin_with_scales,
    learned_scales,
    scaled_objective,
    scaling_work,
)
from crammed.training.plan import work_before_training
from crammed.training.update.build import build_for
from crammed.training.update.step import TrainStep
from support.text import tiny
from support.training import train, train_in_two

ROWS, ROW = 4, 32
FEW = ("train.grad_init.updates=3", f"train.grad_init.rows={ROWS}", "model.embedding_start=random")
ABOVE, WITHIN = "train.grad_init.bound=1e-9", "train.grad_init.bound=1e9"


def asked(limit: str, *more: str) -> RunConfig:
    return tiny("crammed", *FEW, *more, budget={"limit": limit})


def scaling_of(config: RunConfig) -> GradInitConfig:
    assert config.train.grad_init is not None
    return config.train.grad_init


def begun(
    config: RunConfig, corpus: Corpus, cpu: Device, dtype: torch.dtype = torch.float32
) -> tuple[TrainStep, dict[str, Tensor], NDArray[np.int64], Tensor]:
    """A step whose model was scaled, its weights before, the rows, and the scales."""
    step = build_for(config, corpus, cpu)
    step.model.to(dtype)
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    rows = RowStream(corpus, config.seed, config.order).read(0, 6 * ROWS)
    return step, before, rows, begin_with_scales(config, scaling_of(config), step, rows)


@pytest.mark.parametrize("bound", [ABOVE, WITHIN])
def test_the_scales_are_those_of_the_algorithm(corpus: Corpus, cpu: Device, bound: str) -> None:
    """Computed again, each tensor multiplied by hand, with Adam written out."""
    config = asked("4updates", bound)
    given, tau = scaling_of(config), 0.01
    step, start_weights, rows, found = begun(config, corpus, cpu, torch.float64)
    model = copy.deepcopy(step.model).eval()
    names, count = list(start_weights), predicted_positions(config.masking.rate, ROW)

    def loss(weights: dict[str, Tensor], number: int) -> Tensor:
        places = torch.arange(number * ROWS, (number + 1) * ROWS)
        masked = step.objective._mask(torch.from_numpy(rows)[places], places, count)  # type: ignore[attr-defined]
        with sdpa_kernel(SDPBackend.MATH):
            logits = functional_call(model, weights, (masked.ids, masked.positions))
        return F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten())

    scales = {name: torch.ones((), dtype=torch.float64) for name in names}
    first, second = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for n in range(3):
        for scale in scales.values():
            scale.requires_grad_()
        weights = {name: scales[name] * start_weights[name] for name in names}
        g = torch.autograd.grad(loss(weights, 2 * n), list(weights.values()), create_graph=True)
        if bound == ABOVE:
            objective = sum((each.abs().sum() for each in g), torch.zeros(()))
        else:
            steps = zip(weights.items(), g, strict=True)
            objective = loss({k: w - given.lr * each.sign() for (k, w), each in steps}, 2 * n + 1)
        for name, found_one in zip(
            names, torch.autograd.grad(objective, list(scales.values())), strict=True
        ):
            d = found_one.item()
            first[name] = 0.9 * first[name] + 0.1 * d
            second[name] = 0.98 * second[name] + 0.02 * d * d
            m, v = first[name] / (1 - 0.9 ** (n + 1)), second[name] / (1 - 0.98 ** (n + 1))
            scales[name] = scales[name].detach() - tau * m / (v**0.5 + 1e-8)
    wanted = torch.stack([scales[name] for name in names])
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0.0)
    assert ((found - 1.0).abs() > 1e-3).float().mean() > 0.6  # but for biases, which are 0
    for scale, (name, weight) in zip(found, step.model.named_parameters(), strict=True):
        torch.testing.assert_close(weight, scale * start_weights[name], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("bound", [1e-9, 1e9])
def test_the_objective_falls(bound: float) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(64, 8, generator=draw), torch.arange(64) % 4
    weights = [torch.randn(16, 8, generator=draw), torch.randn(4, 16, generator=draw)]

    def loss(at: Sequence[Tensor], number: int) -> Tensor:
        return F.cross_entropy(F.linear(F.gelu(F.linear(inputs, at[0])), at[1]), labels)

    config = GradInitConfig(updates=40, rate=0.02, bound=bound)
    objective = partial(scaled_objective, weights, loss=loss, number=0, config=config)
    scales = learned_scales(weights, loss, config)
    assert objective(scales.requires_grad_()) < 0.8 * objective(torch.ones(2, requires_grad=True))
    least = learned_scales(weights, loss, GradInitConfig(updates=300, rate=0.1, bound=1e-9))
    assert least.min() == pytest.approx(LEAST)


@pytest.mark.parametrize(
    "words",
    [
        "objective.name=script",
        "objective.name=causal-first",
        "objective.name=contrast",
        "objective.name=electra",
        "loss.name=incorrect-only",
        "loss.name=focal",
        "loss.name=balanced",
        "model.norm_kind=rms model.norm_bias=false",
        "model.dropout=0.1 train.attention=document",
        "train.drop_tokens=0.5 model.layers=3",
        "compute.dtype=bfloat16",
        "model.positions=scaled-sinusoidal model.attention_start=random",
        "model.positions=learned model.attention_start=random",
        "model.positions=t5 model.attention_start=random",
        "model.mixer=fourier model.positions=learned model.attention_start=random "
        "model.qkv_bias=false",
        "model.weighing=relu model.passes=2 model.first_attention_norm=true",
    ],
)
def test_it_goes_with_other_options(corpus: Corpus, cpu: Device, words: str) -> None:
    config = asked("4updates", ABOVE, *words.split())
    one, two = (begun(config, corpus, cpu)[3] for _ in range(2))
    assert one.isfinite().all()
    assert (one != 1.0).float().mean() > 0.6  # all but those of biases that begin at zero
    assert torch.equal(one, two)


@pytest.mark.parametrize(("bound", "passes"), [(ABOVE, PASSES), (WITHIN, 2.0)])
def test_flops_are_counted(corpus: Corpus, cpu: Device, bound: str, passes: float) -> None:
    """As many times those of a gradient, by PyTorch's count, as is said."""
    config = asked("4updates", bound)
    given = scaling_of(config)
    with FlopCounterMode(display=False) as whole:
        step, *_ = begun(config, corpus, cpu)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as once:
        step.objective._in_place = False  # type: ignore[attr-defined]
        step.try_rows(ROWS)
    found = whole.get_total_flops() / given.updates / once.get_total_flops()
    assert found == pytest.approx(passes, rel=0.05)
    tokens, vocabulary = ROWS * ROW, corpus.vocab_size
    predicted = predicted_positions(config.masking.rate, ROW)
    gradient = tokens * train_flops_per_token(config.model, vocabulary, ROW, predicted)
    counted = scaling_work(config, vocabulary)
    assert counted == Work(flops=PASSES * given.updates * gradient)
    assert work_before_training(config, vocabulary) == counted


def test_a_budget_of_flops_pays_for_it(tmp_path: Path, corpus: Corpus, cpu: Device) -> None:
    unscaled = tiny("crammed", "model.embedding_start=random", budget={"limit": "3updates"})
    plain = train(unscaled, corpus, tmp_path / "plain", cpu).work
    before = scaling_work(asked("1updates"), corpus.vocab_size).flops
    config = asked(f"{before + 1.01 * plain.flops}flop", "batch.ramp=0.0")
    trained = train(config, corpus, tmp_path / "run", cpu)
    assert trained.work.flops <= 1.01 * plain.flops
    assert trained.u == pytest.approx((before + trained.work.flops) / (before + 1.01 * plain.flops))


def test_a_plan_measures_it(corpus: Corpus, cpu: Device) -> None:
    assert measure_speed(asked("60s"), corpus, cpu, 0.0, SILENT).start > 0.0


def test_a_run_begins_with_it_once_and_is_exported(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[NDArray[np.int64], Tensor]] = []

    def note(config: Any, scaling: Any, step: Any, rows: NDArray[np.int64], show: Any) -> Tensor:
        found.append((rows, begin_with_scales(config, scaling, step, rows, show)))
        return found[-1][1]

    monkeypatch.setattr(start, "begin_with_scales", note)
    config, said = asked("6updates", "train.checkpoint_seconds=1e-9"), io.StringIO()
    whole = train(config, corpus, tmp_path / "whole", cpu, Progress(said)).model
    assert "scales  of the initial weights, between 0.9" in said.getvalue()
    rows, scales = found[0]
    assert np.array_equal(rows, RowStream(corpus, 0, config.order).read(0, len(rows)))
    assert len(rows) == 2 * 3 * ROWS
    resumed = train_in_two(config, corpus, tmp_path / "run", cpu, monkeypatch, 4).model.state_dict()
    assert len(found) == 2
    assert torch.equal(found[1][1], scales)
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.state_dict().items())
    unscaled = tiny("crammed", "model.embedding_start=random", budget={"limit": "6updates"})
    plain = train(unscaled, corpus, tmp_path / "plain", cpu).model.state_dict()
    assert not torch.equal(plain["encoder.tokens.weight"], resumed["encoder.tokens.weight"])
    model = trained_model(whole, config.model, ROW, corpus.tokenizer)
    export(model, tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").exists()


def test_few_rows_are_read_again(corpus: Corpus, cpu: Device) -> None:
    config = asked("4updates")
    step = build_for(config, corpus, cpu)
    rows = RowStream(corpus, 0, config.order).read(0, 3)
    assert begin_with_scales(config, scaling_of(config), step, rows).isfinite().all()
