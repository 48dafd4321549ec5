"""TSDAE: what is deleted, and that a text is rebuilt from its vector alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crammed.embedding import denoising
from crammed.embedding.denoising import Decoder, with_deletions
from crammed.evaluation.finetuning.batches import Batch

CLS, SEP, PAD = 1, 2, 0


def batch(rows: list[list[int]], *, types: bool = False) -> Batch:
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    mask = torch.arange(width) < lengths[:, None]
    return Batch(ids, mask, ids + 100 if types else None, torch.zeros(len(rows)))


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_most_tokens_are_deleted_and_the_rest_keeps_its_order() -> None:
    rows = [[CLS, *range(10, 10 + n), SEP] for n in (200, 150, 1)]
    given = batch(rows, types=True)
    left = with_deletions(given, [CLS, SEP, PAD], drawn(0))
    assert left.types is not None
    for row, ids, types, mask in zip(rows, left.ids, left.types, left.mask, strict=True):
        kept = ids[mask].tolist()
        assert [kept[0], kept[-1]] == [CLS, SEP]
        assert kept[1:-1] == [number for number in row if number in {*kept[1:-1]}]
        assert types[mask].tolist() == [100 + number for number in kept]
        if len(row) > 100:
            assert 0.3 < (len(kept) - 2) / (len(row) - 2) < 0.5
    assert left.ids.shape[1] < 110
    assert left.mask[2].sum() == 3  # a text of one token keeps it
    again = with_deletions(given, [CLS, SEP, PAD], drawn(0))
    assert torch.equal(left.ids, again.ids)
    other = with_deletions(given, [CLS, SEP, PAD], drawn(1))
    assert left.ids.shape != other.ids.shape or not torch.equal(left.ids, other.ids)


def test_a_text_of_special_tokens_alone_stays() -> None:
    left = with_deletions(batch([[CLS, SEP], [CLS, 5, SEP]]), [CLS, SEP, PAD], drawn(0))
    assert left.ids[0][left.mask[0]].tolist() == [CLS, SEP]


def decoder(narrow: int = 24) -> tuple[Decoder, nn.Parameter]:
    torch.manual_seed(3)
    table = nn.Parameter(0.02 * torch.randn(50, narrow))
    return Decoder(table, 24, 9).eval(), table


@pytest.mark.parametrize("narrow", [24, 8])
def test_the_loss_is_that_of_each_token_by_itself(
    monkeypatch: pytest.MonkeyPatch, narrow: int
) -> None:
    monkeypatch.setattr(denoising, "_AT_ONCE", 3)
    model, table = decoder(narrow=narrow)
    rows, vectors = [[1, 7, 8, 9, 2], [1, 30, 2]], torch.randn(2, 24)
    given = batch(rows)
    found = model.loss(given.ids, given.mask, vectors)
    losses: list[Tensor] = []
    for row, vector in zip(rows, vectors, strict=True):
        for n in range(1, len(row)):  # only the tokens before it are given
            hidden = F.embedding(torch.tensor([row[:n]]), table) * model._unit
            hidden = model.norm(model.into(hidden)) + model.places[:n]
            later = torch.full((n, n), -torch.inf).triu(1)
            hidden = model.layer(hidden, vector[None, None], tgt_mask=later)
            logits = F.linear(model.last(hidden[0, -1]), table) * model._unit / narrow**0.5
            losses.append(F.cross_entropy(logits, torch.tensor(row[n])))
    torch.testing.assert_close(found, torch.stack(losses).mean())
    found.backward()
    assert table.grad is not None
    assert table not in {*model.parameters()}


def test_texts_are_rebuilt_from_their_vectors_alone() -> None:
    """Texts that begin alike can only be told apart by what a vector says of them."""
    model, table = decoder()
    rows = [[1, 20 + n, 30 + n, 40 + n, 2] for n in range(8)]
    given = batch(rows)
    vectors = nn.Parameter(torch.randn(8, 24))
    optimizer = torch.optim.Adam([*model.parameters(), table, vectors], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(given.ids, given.mask, vectors)
        loss.backward()
        optimizer.step()
    mixed = model.loss(given.ids, given.mask, vectors.roll(1, 0))
    assert loss < 0.3
    assert mixed > loss + 1.0
