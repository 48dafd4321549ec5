"""The fine-tuning engine: batches, losses, one model or several side by side, captured or not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.finetuning.batches import EncodedSplit, epoch_batches
from crammed.evaluation.finetuning.engine import (
    GRAPH_WIDTH,
    PREDICTION_TOKENS,
    Numerics,
    _batches_of_tokens,
    epoch_order,
    finetune,
    learning_rate,
    loss_of,
    predict,
)
from crammed.evaluation.finetuning.task import LabelScale

CPU = torch.device("cpu")
FLOAT = Numerics(CPU, torch.float32, graphs=False)


def tokenized(rows: list[list[int]], types: bool = False, words: bool = False) -> Tokenized:
    ids = np.array([token for row in rows for token in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    kinds = np.arange(len(ids)).astype(np.uint8) % 2 if types else None
    # Every second token of a row begins a word.
    firsts = [n // 2 if n % 2 == 0 else -1 for row in rows for n in range(len(row))]
    return Tokenized(ids, offsets, kinds, np.array(firsts, np.int32) if words else None, 0)


def encoded(
    rows: list[list[int]], labels: Any = None, choices: int = 1, **more: Any
) -> EncodedSplit:
    values = np.zeros(len(rows) // choices, np.float32) if labels is None else np.float32(labels)
    return EncodedSplit(tokenized(rows, **more), np.asarray(values), choices, 99, CPU)


def of_lengths(lengths: list[int]) -> EncodedSplit:
    return encoded([[1] * n for n in lengths])


class Toy(nn.Module):
    """A linear layer on the mean of embeddings, or on every embedding."""

    def __init__(self, outputs: int, seed: int = 0, dropout: float = 0.0, every: bool = False):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(100, 8)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(8, outputs)
        self.every = every

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        hidden = self.drop(self.embedding(ids)) * mask[..., None]
        if not self.every:
            hidden = hidden.sum(1) / mask.sum(1, keepdim=True)
        logits: Tensor = self.out(hidden)
        return logits


def protocol(**values: Any) -> Protocol:
    return Protocol.model_validate(
        {"epochs": 2, "batch": 8, "lr": 0.05, "max_length": 64, **values}
    )


def some_rows(count: int = 40, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 90, draw.integers(3, 20)).tolist() for _ in range(count)]


@given(st.lists(st.integers(1, 60), min_size=4, max_size=400), st.sampled_from([4, 16]))
@settings(max_examples=30, deadline=None)
def test_an_epochs_batches_hold_every_row_once(lengths: list[int], size: int) -> None:
    rows = of_lengths(lengths)

    def batches(own: int, shared: int) -> NDArray[np.int64]:
        return epoch_batches(rows, size, np.random.default_rng(own), np.random.default_rng(shared))

    first = batches(0, 0)
    assert first.shape == (len(lengths) // size, size)
    assert len(set(first.flatten().tolist())) == first.size
    assert np.array_equal(first, batches(0, 0))
    if len(lengths) > 50:
        assert not np.array_equal(first, batches(1, 0))


def test_batches_of_similar_length_need_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(5, 120, 2000)
    rows = of_lengths(lengths.tolist())
    first, second = (
        epoch_batches(rows, 16, np.random.default_rng(own), np.random.default_rng(7))
        for own in (1, 2)
    )
    assert 16 * rows.widths(first).sum() < 1.1 * lengths.sum()
    # Rows in a batch do not all have the same length, so epochs differ in which rows meet.
    assert np.mean([np.ptp(lengths[batch]) for batch in first]) > 2
    # Seeds that share the order of lengths have short batches at the same steps.
    together = np.maximum(rows.widths(first), rows.widths(second))
    assert 16 * together.sum() < 1.2 * lengths.sum()


@given(st.integers(0, 10_000), st.sampled_from([1, 3]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_batches_gathered_from_flat_tokens_are_the_padded_rows(
    seed: int, choices: int, types: bool
) -> None:
    rows = some_rows(12, seed)
    split = encoded(rows, np.arange(12 // choices), choices, types=types)
    chosen = np.random.default_rng(seed).permutation(len(split))[:3]
    batch = split.batch(torch.from_numpy(chosen), int(split.widths(chosen)))
    sequences = [rows[c * choices + n] for c in chosen for n in range(choices)]
    width = max(map(len, sequences))
    assert batch.ids.tolist() == [s + [99] * (width - len(s)) for s in sequences]
    assert batch.mask.tolist() == [[True] * len(s) + [False] * (width - len(s)) for s in sequences]
    assert batch.labels.tolist() == chosen.tolist()
    assert (batch.types is not None) == types
    if batch.types is not None:
        assert int(batch.types[~batch.mask].sum()) == 0


def test_labels_of_words_stand_at_the_tokens_that_begin_them() -> None:
    tokens = tokenized([[1, 2, 3], [4, 5]], words=True)
    counts = np.array([3, 1])  # the third word of the first row was truncated
    labels = np.array([0, -1, 2, 1], np.float32)
    split = EncodedSplit(tokens, labels, 1, 99, CPU, counts)
    assert split.batch(torch.tensor([0, 1]), 3).labels.tolist() == [
        [0, -100, -100],
        [1, -100, -100],
    ]
    outputs = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert split.of_words(outputs, majority=1).tolist() == [[0, 1], [4, 5], [0, 1], [6, 7]]


def test_losses_are_those_of_the_definitions() -> None:
    logits = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
    classes = torch.tensor([1.0, 0.0])
    expected = F.cross_entropy(logits, classes.long())
    assert torch.equal(loss_of("classification", logits, classes, 1), expected)
    both = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    by_hand = -(both * logits.sigmoid().log() + (1 - both) * (1 - logits.sigmoid()).log()).mean()
    assert loss_of("multi-label", logits, both, 1).item() == pytest.approx(by_hand.item())
    value = loss_of("regression", logits[:, :1], torch.tensor([1.0, 1.0]), 1).item()
    assert value == pytest.approx((0.25 + 1.0) / 2)
    four = torch.tensor([[1.0], [0.0], [0.0], [3.0]])
    chosen = torch.tensor([0.0, 1.0])
    expected = F.cross_entropy(four.view(2, 2), chosen.long())
    assert torch.equal(loss_of("choice", four, chosen, 2), expected)
    tokens = torch.randn(2, 3, 4)
    labels = torch.tensor([[1, -100, 2], [-100, -100, 0]])
    kept = F.cross_entropy(tokens[labels >= 0], labels[labels >= 0])
    assert loss_of("tokens", tokens, labels, 1).item() == pytest.approx(kept.item())


def test_only_values_far_from_zero_are_scaled() -> None:
    """Those of STS-B stay as they are, and so do the numbers of classes."""
    usual = np.linspace(-10.0, 10.0, 9, dtype=np.float32)
    far = usual + np.float32(1000.0)
    for kept in (LabelScale.of("regression", usual), LabelScale.of("classification", far)):
        assert kept == LabelScale()
        assert kept.scaled(far) is kept.undone(far) is far
    scale = LabelScale.of("regression", far)
    scaled = scale.scaled(far)
    assert scaled.dtype == scale.undone(scaled).dtype == np.float32
    assert (scaled.mean(), scaled.std()) == pytest.approx((0.0, 1.0), abs=1e-6)
    np.testing.assert_allclose(scale.undone(scaled), far)


@pytest.mark.parametrize(("shape", "end"), [("cosine", 0.0), ("linear", 0.0), ("constant", 1.0)])
def test_the_learning_rate_warms_up_within_the_task(shape: str, end: float) -> None:
    curve = learning_rate(protocol(schedule=shape, warmup=0.1))
    assert curve(0.05) == pytest.approx(0.5)
    assert curve(0.1) == pytest.approx(1.0)
    assert curve(1.0) == pytest.approx(end, abs=1e-6)


def train(models: list[Toy], names: list[tuple[str, int]], rows: EncodedSplit, **more: Any) -> int:
    capture = more.pop("capture", None)
    steps = list(finetune(models, names, "classification", rows, protocol(**more), FLOAT, capture))
    assert steps == list(range(1, len(steps) + 1))
    return len(steps)


def assert_same_weights(one: Toy, other: Toy) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_an_engine_step_is_a_plain_training_step() -> None:
    """The reference: padded by hand, .backward(), torch's optimizer and learning rate."""
    rows = some_rows()
    labels = np.arange(40) % 2
    split = encoded(rows, labels)
    model = Toy(2)
    reference = copy.deepcopy(model)
    settings = protocol(clip=0.3, weight_decay=0.1)
    steps = list(finetune([model], [("t", 3)], "classification", split, settings, FLOAT))

    optimizer = torch.optim.AdamW(
        reference.parameters(), lr=0.05, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1
    )
    curve, done = learning_rate(settings), 0
    for epoch in range(2):
        for batch in epoch_order(split, 8, "t", 3, epoch):
            width = max(len(rows[n]) for n in batch)
            ids = torch.tensor([rows[n] + [0] * (width - len(rows[n])) for n in batch])
            mask = torch.tensor([[k < len(rows[n]) for k in range(width)] for n in batch])
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * curve((done + 0.5) / len(steps))
            loss = F.cross_entropy(reference(ids, mask, None), torch.tensor(labels[batch]))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
            optimizer.step()
            done += 1
    assert done == len(steps) == 10
    assert_same_weights(model, reference)


def test_a_model_does_not_notice_those_beside_it() -> None:
    split = encoded(some_rows(), np.arange(40) % 2)
    alone = [Toy(2, seed) for seed in (0, 1)]
    together = copy.deepcopy(alone)
    for seed, model in enumerate(alone):
        train([model], [("t", seed)], split)
    train(together, [("t", 0), ("t", 1)], split)
    for one, other in zip(alone, together, strict=True):
        assert_same_weights(one, other)
    assert not torch.allclose(alone[0].out.weight, alone[1].out.weight)


def test_replayed_steps_train_as_eager_ones_do() -> None:
    """Steps repeated on buffers, as CUDA graphs do, with the widths that graphs have."""
    split = encoded(some_rows(80), np.arange(80) % 2)
    shapes: list[int] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        step()
        shapes.append(1)
        return step

    eager, replayed = Toy(2), Toy(2)
    steps = train([eager], [("t", 0)], split)
    assert train([replayed], [("t", 0)], split, capture=capture) == steps
    assert len(shapes) == len({-(-w // GRAPH_WIDTH) for w in split.widths(np.arange(80)[:, None])})
    assert_same_weights(eager, replayed)


def test_dropout_repeats_with_the_seed_and_differs_without() -> None:
    split = encoded(some_rows(), np.arange(40) % 2)
    runs: list[Tensor] = []
    for seed in (0, 0, 1):
        model = Toy(2, 0, dropout=0.5)
        torch.manual_seed(len(runs))  # what ran before does not matter
        train([model], [("t", seed)], split)
        runs.append(model.out.weight.detach())
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_fewer_rows_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="4 training rows are fewer than one batch of 8"):
        train([Toy(2)], [("t", 0)], encoded([[1, 2]] * 4))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60))
@settings(max_examples=40, deadline=None)
def test_prediction_batches_hold_every_row_within_the_limit(lengths: list[int]) -> None:
    tokens = np.array(lengths)
    by_length = np.argsort(tokens, kind="stable")
    batches = list(_batches_of_tokens(by_length, tokens))
    assert np.concatenate(batches).tolist() == by_length.tolist()
    for batch in batches:
        assert len(batch) == 1 or len(batch) * tokens[batch].max() <= PREDICTION_TOKENS


def test_predictions_come_in_the_order_of_the_rows() -> None:
    rows, model = some_rows(30), Toy(3)
    outputs = predict(model, encoded(rows), FLOAT)
    assert outputs.shape == (30, 3)
    for row, output in zip(rows, outputs, strict=True):
        ids = torch.tensor([row])
        alone = model(ids, torch.ones_like(ids, dtype=torch.bool), None)
        np.testing.assert_allclose(output, alone[0].detach().numpy(), rtol=1e-4, atol=1e-6)
    one = Toy(1)
    choices = predict(one, encoded(rows, choices=3), FLOAT)
    singles = predict(one, encoded(rows), FLOAT)
    np.testing.assert_allclose(choices, singles.reshape(10, 3), rtol=1e-4, atol=1e-6)


def test_predictions_of_tokens_come_in_the_order_of_the_tokens() -> None:
    rows, model = some_rows(15), Toy(4, every=True)
    tokens = tokenized(rows, words=True)
    counts = np.array([(len(row) + 1) // 2 for row in rows])
    split = EncodedSplit(tokens, np.zeros(int(counts.sum()), np.float32), 1, 99, CPU, counts)
    outputs = predict(model, split, FLOAT)
    expected = model.out(model.embedding(torch.from_numpy(tokens.ids).long())).detach().numpy()
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)


def test_a_batch_of_words_without_labels_has_no_loss() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    labels = torch.tensor([[1, -100, 3], [-100, 0, -100]])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    torch.testing.assert_close(loss_of("tokens", logits, labels, 1), expected)
    loss = loss_of("tokens", logits, torch.full((2, 3), -100), 1)
    loss.backward()
    assert loss == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()
