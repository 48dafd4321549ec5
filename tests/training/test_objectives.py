"""Objectives besides masked tokens, against slow twins, and what is said of such runs."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crammed.data.borders import same_document
from crammed.data.corpus import Corpus
from crammed.data.masking import Masker, keyed_bits
from crammed.errors import InputError
from crammed.keys import key
from crammed.machine.device import Device
from crammed.model.count import run_flops_per_token
from crammed.model.encoder import MaskedLM
from crammed.runs.logs import read_metrics
from crammed.training.distributed import Group
from crammed.training.update.build import build
from crammed.training.update.objectives import Script, guessed
from support.command import crammed
from support.steps import (
    SPECIALS,
    check_compiled,
    check_microbatches,
    needs_compiler,
    rows_of,
    update_of,
)
from support.text import MODEL, tiny
from support.training import train

SCRIPT, CAUSAL = "objective.name=script", "objective.name=causal-first"
CONTRAST, ELECTRA = "objective.name=contrast", "objective.name=electra"
FOURS = (CONTRAST, "objective.rows=4")
PLAIN = ("model.attention_start=random", "model.embedding_std=null")


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
    found = guessed(objective._word, logits.expand(4000, 5, -1), torch.arange(4000))
    shares = found.flatten().bincount(minlength=5) / found.numel()
    torch.testing.assert_close(shares, logits.softmax(-1), rtol=0.0, atol=0.01)


@pytest.mark.parametrize("documents", [False, True])
def test_contrast_equals_its_twin(cpu: Device, documents: bool) -> None:
    more = ("objective.weight=3.0", "objective.temperature=0.2", "model.init_std=0.3")
    words = ["train.attention=document"] * documents
    config = tiny("crammed", *FOURS, *PLAIN, *more, *words)
    step, rows = build(config, 256, SPECIALS, cpu), rows_of(10)
    rows[:, 5] = SPECIALS.sep
    loss = step.gradients(rows, update_of(10))
    model = deepcopy(step.model).double()
    attended = same_document(rows, SPECIALS.sep) if documents else None
    masked = Masker(config.seed, "80-10-10", 4, range(5), 256)(rows, torch.arange(10), 8)
    logits = model(masked.ids, masked.positions, attended)
    expected = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten())
    for group in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9)):
        means = {
            (row, side): _mean_of_half(model, rows[row, 16 * side : 16 * side + 16], documents)
            for row in group
            for side in (0, 1)
        }
        for (row, side), mine in means.items():
            alike = {
                other: torch.cosine_similarity(mine, theirs, dim=0) / 0.2
                for other, theirs in means.items()
                if other != (row, side)
            }
            normaliser = sum(each.exp() for each in alike.values())
            odds = alike[row, 1 - side].exp() / normaliser
            expected = expected - 3.0 * odds.log() / 20
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for one, other in zip(step.parameters, model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-5)


def _mean_of_half(model: MaskedLM, half: torch.Tensor, documents: bool) -> torch.Tensor:
    """The mean of the hidden states of 16 tokens, of which the sixth may end a document."""
    encoder = model.encoder
    cut = documents and SPECIALS.sep in half
    parts = ((half[:6], 0), (half[6:], 6)) if cut else ((half, 0),)
    hidden = []
    for part, start in parts:
        at = torch.arange(start, start + len(part))[None]
        prepared = encoder.prepare(encoder.tokens(part[None]), None, None, part[None], at)
        hidden.append(encoder.through_layers(*prepared)[0])
    return torch.cat(hidden).mean(0)


@pytest.mark.parametrize("words", [(SCRIPT,), FOURS, (ELECTRA,)], ids=" ".join)
def test_flops_of_both_passes_are_counted(cpu: Device, words: tuple[str, ...]) -> None:
    config = tiny("crammed", *words)
    objective = build(config, 256, SPECIALS, cpu).objective
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        objective.loss(rows_of(4), torch.arange(4), 8)
    counted = run_flops_per_token(config, 256, 8) * rows_of(4).numel()
    # The first pass leaves a part of the last layer out, which is counted.
    assert 3 * forward.get_total_flops() == pytest.approx(counted, rel=0.1)


def test_distances_to_embeddings_need_no_logits() -> None:
    plain = ("masking.z_loss=0", "model.decoder_bias=false")
    usual, distance = tiny("crammed", *plain), tiny("crammed", "loss.name=embedding", *plain)
    logits = 6.0 * 256 * usual.model.width * 8 / usual.data.row_length
    counted = run_flops_per_token(usual, 256, 8) - logits
    assert run_flops_per_token(distance, 256, 8) == pytest.approx(counted)


EACH = [((SCRIPT,), 0.25), ((CAUSAL,), 1.0), ((CAUSAL,), 0.25), (FOURS, 0.25), ((ELECTRA,), 0.25)]


@pytest.mark.parametrize(("words", "rate"), EACH)
@pytest.mark.parametrize("more", ["compute.lanes=1", "compute.lanes=2", "train.lengthen_at=[0.5]"])
def test_updates_do_not_depend_on_the_microbatch(
    cpu: Device, words: tuple[str, ...], rate: float, more: str
) -> None:
    config = tiny("crammed", *words, more)
    check_microbatches(config, cpu, mask_rate=rate, pieces=config.pieces_at(0.0))


def test_processes_do_not_part_rows_that_are_compared(cpu: Device) -> None:
    step, rows = build(tiny("crammed", *FOURS), 256, SPECIALS, cpu), rows_of(22)
    shares = [Group(rank, 3).share(22, step.together) for rank in range(3)]
    assert [(part.start, part.stop) for part in shares] == [(0, 8), (8, 16), (16, 22)]
    whole = step.gradients(rows, update_of(22))
    parts = [step.gradients(rows[part], update_of(22), part.start) for part in shares]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


@pytest.mark.parametrize("word", ["objective.name=masked", CONTRAST])
def test_only_contrast_soon_learns_which_halves_belong_together(cpu: Device, word: str) -> None:
    words = ["objective.rows=8"] * (word == CONTRAST)
    step = build(tiny("crammed", word, *words, "optim.lr=2e-3"), 256, SPECIALS, cpu)
    for number in range(30):
        step.gradients(_of_topics(number), update_of(8, number))
        step.apply(1.0)
    found = []
    for seed in range(1000, 1008):
        halves = _of_topics(seed).reshape(16, 16)
        vectors = F.normalize(step.model.encoder(halves).mean(1), dim=-1).detach()
        nearest = (vectors @ vectors.T).fill_diagonal_(-1.0).argmax(1)
        found.append(nearest == torch.arange(16) ^ 1)
    right = torch.cat(found).float().mean().item()
    assert right > 0.9 if word == CONTRAST else right < 0.5


def _of_topics(seed: int) -> torch.Tensor:
    """Eight rows of topics of their own, with other tokens in the first half than in the second."""
    generator = torch.Generator().manual_seed(seed)
    topics = torch.randperm(12, generator=generator)[:8, None]
    within = torch.randint(0, 10, (8, 32), generator=generator)
    return 10 + 20 * topics + within + 10 * (torch.arange(32) >= 16)


@pytest.mark.parametrize("word", [SCRIPT, CAUSAL, CONTRAST, ELECTRA])
def test_a_model_learns_by_it_and_otherwise_than_by_masked_tokens(cpu: Device, word: str) -> None:
    losses, masked = _losses(cpu, word), _losses(cpu, "objective.name=masked")
    assert losses[-1] < losses[0]
    assert losses[-1] != pytest.approx(masked[-1], rel=0.01)


def _losses(cpu: Device, word: str) -> list[float]:
    """Those of eight updates on the same rows."""
    config = tiny("crammed", word)
    losses: list[float] = []
    step = build(config, 256, SPECIALS, cpu)
    for _ in range(8):
        update = replace(update_of(8), mask_rate=config.mask_rate_at(0.0))
        losses.append(step.gradients(rows_of(8), update).item())
        step.apply(1.0)
    return losses


def test_an_update_of_contrast_that_does_not_fit_is_refused(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = build(tiny("crammed", *FOURS), 256, SPECIALS, replace(cpu, recomputes=False))

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(step, "_loss", full)
    with pytest.raises(
        InputError, match=r"not even objective\.rows=4 rows of 32 tokens fit .*: lower that, or"
    ):
        step.gradients(rows_of(8), update_of(8))


@pytest.mark.parametrize("word", ["objective.name=masked", SCRIPT, CONTRAST, ELECTRA])
def test_such_a_run_is_marked_as_outside_the_rules(
    corpus: Corpus, tmp_path: Path, word: str
) -> None:
    out = tmp_path / "run"
    words = (*MODEL, word, "--budget=2updates", f"--corpus={corpus.path}", f"--out={out}")
    done = crammed("pretrain", "crammed", *words)
    assert done.returncode == 0, done.stderr
    card = (out / "export" / "README.md").read_text("utf-8")
    outside = word != "objective.name=masked"
    assert (f"outside the rules of Cramming: {word}" in card) == outside
    assert ("outside the rules" in done.stdout) == outside


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(("words", "rate"), [*EACH[:2], *EACH[3:]])
def test_compiled_updates_are_the_same(cpu: Device, words: tuple[str, ...], rate: float) -> None:
    check_compiled(tiny("crammed", *words), cpu, mask_rate=rate)
