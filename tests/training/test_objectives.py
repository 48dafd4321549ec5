"""Objectives besides masked tokens, against slow twins, and what is said of such runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crammed.config import RunConfig
from crammed.config.kinds import kinds_of
from crammed.data.corpus import Corpus
from crammed.data.masking import Masker, keyed_bits
from crammed.keys import key
from crammed.machine.device import Device
from crammed.model.count import run_flops_per_token
from crammed.model.encoder import MaskedLM
from crammed.runs.logs import read_metrics
from crammed.training.update.build import build
from crammed.training.update.objectives import OBJECTIVES, Script
from support.command import crammed
from support.steps import SPECIALS, rows_of, update_of
from support.text import MODEL, tiny
from support.training import train

SCRIPT, CAUSAL = "objective.name=script", "objective.name=causal-first"
PLAIN = ("model.attention_start=random", "model.embedding_std=null")


def test_the_registry_holds_the_choices_and_nothing_else() -> None:
    assert kinds_of(RunConfig)["objective"].kinds.keys() == OBJECTIVES.keys()


@pytest.mark.parametrize("documents", [False, True])
def test_causal_updates_are_those_of_a_causal_model(cpu: Device, documents: bool) -> None:
    words = ["train.attention=document"] * documents
    config = tiny("crammed", CAUSAL, *PLAIN, *words)
    step, rows = build(config, 256, SPECIALS, cpu), rows_of(6)
    rows[:, 10] = SPECIALS.sep
    update = replace(update_of(6), mask_rate=config.mask_rate_at(0.1))
    loss = step.gradients(rows, update)
    twin = MaskedLM(config.model.model_copy(update={"scope": "causal"}), 256)
    twin.load_state_dict(step.model.state_dict())
    logits = twin(rows)
    if documents:
        logits = torch.cat((twin(rows[:, :11]), _later(twin, rows)), 1)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for one, other in zip(step.parameters, twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6)


def _later(twin: MaskedLM, rows: torch.Tensor) -> torch.Tensor:
    """Logits from the 12th token on, which may not attend to those before."""
    encoder = twin.encoder
    at = torch.arange(11, rows.shape[1])[None]
    prepared = encoder.prepare(encoder.tokens(rows[:, 11:]), None, None, rows[:, 11:], at)
    return twin.decode(encoder.through_layers(*prepared))


def test_the_causal_part_comes_first(corpus: Corpus, cpu: Device, tmp_path: Path) -> None:
    words = ("budget.limit=8updates", "train.log_seconds=1e-9", "objective.share=0.5")
    train(tiny("crammed", CAUSAL, *words), corpus, tmp_path / "run", cpu)
    rates = [point["mask_rate"] for point in read_metrics(tmp_path / "run")]
    assert rates == [1.0] * 4 + [0.25] * 4


def test_script_equals_its_twin(cpu: Device) -> None:
    config = tiny("crammed", SCRIPT, *PLAIN, "objective.weight=3.0", "model.init_std=0.3")
    step, rows = build(config, 256, SPECIALS, cpu), rows_of(5)
    model, count = step.model, 8
    loss = step.gradients(rows, update_of(5)).item()
    masked = Masker(config.seed, "80-10-10", 4, range(5), 256)(rows, torch.arange(5), count)
    logits = model(masked.ids, masked.positions)
    first = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten())
    draws = keyed_bits(key(config.seed, "guess"), torch.arange(5), count) / 2**32
    filled, right = rows.clone(), 0
    for row in range(5):
        for n, place in enumerate(masked.positions[row].tolist()):
            total, guess = 0.0, -1
            while total <= draws[row, n]:
                guess += 1
                total += logits[row, n].softmax(-1)[guess].item()
            filled[row, place] = guess
            right += guess == rows[row, place].item()
    second = 0.0
    for row, scores in enumerate(model(filled).detach()):
        for place in range(rows.shape[1]):
            odds = scores[place].exp().mean()
            replaced = filled[row, place] != rows[row, place]
            second -= math.log((odds if replaced else 1.0) / (1.0 + odds)) / rows.numel()
    assert loss == pytest.approx(first.item() + 3.0 * second, rel=1e-4)


def test_guesses_are_as_frequent_as_they_are_probable(cpu: Device) -> None:
    objective = build(tiny("crammed", SCRIPT), 256, SPECIALS, cpu).objective
    assert isinstance(objective, Script)
    logits = torch.tensor([0.0, 2.0, -1.0, -math.inf, 1.0])
    found = objective._guesses(logits.expand(4000, 5, -1), torch.arange(4000))
    shares = found.flatten().bincount(minlength=5) / found.numel()
    torch.testing.assert_close(shares, logits.softmax(-1), rtol=0.0, atol=0.01)


def test_flops_of_both_passes_are_counted(cpu: Device) -> None:
    config = tiny("crammed", SCRIPT)
    objective = build(config, 256, SPECIALS, cpu).objective
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        objective.loss(rows_of(4), torch.arange(4), 8)
    counted = run_flops_per_token(config, 256, 8) * rows_of(4).numel()
    # The first pass leaves a part of the last layer out, which is counted.
    assert 3 * forward.get_total_flops() == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize(("word", "rate"), [(SCRIPT, 0.25), (CAUSAL, 1.0), (CAUSAL, 0.25)])
def test_updates_do_not_depend_on_the_microbatch(cpu: Device, word: str, rate: float) -> None:
    found = []
    for rows in (12, 5):
        step = build(tiny("crammed", word), 256, SPECIALS, replace(cpu, microbatch_rows=rows))
        loss = step.gradients(rows_of(12), replace(update_of(12), mask_rate=rate))
        found.append([loss, *(p.grad for p in step.parameters)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("word", [SCRIPT, CAUSAL])
def test_a_model_learns_by_it(cpu: Device, word: str) -> None:
    config = tiny("crammed", word)
    step = build(config, 256, SPECIALS, cpu)
    losses = []
    for _ in range(8):
        update = replace(update_of(8), mask_rate=config.mask_rate_at(0.0))
        losses.append(step.gradients(rows_of(8), update).item())
        step.apply(1.0)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("word", ["objective.name=masked", SCRIPT])
def test_such_a_run_is_marked_as_outside_the_rules(
    corpus: Corpus, tmp_path: Path, word: str
) -> None:
    out = tmp_path / "run"
    words = (*MODEL, word, "--budget=2updates", f"--corpus={corpus.path}", f"--out={out}")
    done = crammed("pretrain", "crammed", *words)
    assert done.returncode == 0, done.stderr
    card = (out / "export" / "README.md").read_text("utf-8")
    assert ("outside the rules of Cramming: objective.name=script" in card) == (word == SCRIPT)
    assert ("outside the rules" in done.stdout) == (word == SCRIPT)


@pytest.mark.long
@pytest.mark.parametrize(("word", "rate"), [(SCRIPT, 0.25), (CAUSAL, 1.0)])
def test_compiled_updates_are_the_same(cpu: Device, word: str, rate: float) -> None:
    found = []
    for compiled in (False, True):
        step = build(tiny("crammed", word), 256, SPECIALS, replace(cpu, compile=compiled))
        step.prepare([8], [rate])
        loss = step.gradients(rows_of(8), replace(update_of(8), mask_rate=rate))
        found.append([loss, *(p.grad for p in step.parameters)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
