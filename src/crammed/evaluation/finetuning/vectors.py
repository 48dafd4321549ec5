"""Vectors of texts: the mean of an encoder's hidden states; and two texts compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.keys import key
from crammed.tasks.rows import Texts

COMPARED = "means and matched tokens"
"""How `PairClassifier` compares texts: an evaluation does not go on with outputs of another way."""
MATCHED = 0.25
"""Scale of what tokens and their matches have in common. All of its elements point the same way, so
at full size the layer learns from it first and, for entailment, too fast."""


class MeanOfTokens(nn.Module):
    """Hidden states to their mean over the tokens of each row."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        hidden: Tensor = self.encoder(ids, mask, types).float()
        return _mean(hidden, mask[..., None])


class PairClassifier(nn.Module):
    """Compares two texts, each a sequence of its own, as wholes and token by token.

    A token's vector is what the first layer reads of it plus its last hidden state, both scaled to
    the same length, as are the sum and the means of texts: products then tell angles. A linear
    layer reads the means u and v, |u - v| and u * v, as in InferSent (Conneau et al. 2017), and the
    means of |t - m| and t * m over the tokens t of both texts, where m is the mean of the other
    text's tokens, weighted by their likeness to t, as in decomposable attention (Parikh et al.
    2016). The root of the width gives elements the scale that a norm leaves.

    Args:
        encoder: (ids, mask, types) -> [2 * B, S, 2 * width], as `Backbone.encoder_ends_to_tune`.
        dropout: of what the linear layer reads.
        seed: decides the layer's weights.
    """

    def __init__(
        self, encoder: nn.Module, width: int, outputs: int, dropout: float, seed: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.drop = nn.Dropout(dropout)
        self.linear = nn.Linear(6 * width, outputs)
        draw = torch.Generator().manual_seed(key(seed, "pairs"))
        nn.init.normal_(self.linear.weight, std=0.02, generator=draw)
        nn.init.zeros_(self.linear.bias)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """Logits [B, outputs] of the sequences [2 * B, S]."""
        ends = self.encoder(ids, mask, types).float()
        with torch.autocast(ends.device.type, enabled=False):  # likeness needs more than 8 bits
            return self._compared(ends, mask[..., None])

    def _compared(self, ends: Tensor, kept: Tensor) -> Tensor:
        ends = torch.where(kept, ends, 0.0)
        first, last = ends.chunk(2, -1)
        tokens = _scaled(_scaled(first) + _scaled(last))
        a, b, of_a, of_b = tokens[::2], tokens[1::2], kept[::2], kept[1::2]
        u, v = _scaled(_mean(a, of_a)), _scaled(_mean(b, of_b))
        likeness = a @ b.mT / a.shape[-1] ** 0.5
        matched = _matched(a, of_a, b, of_b, likeness) + _matched(b, of_b, a, of_a, likeness.mT)
        read = torch.cat([u, v, (u - v).abs(), u * v, MATCHED * matched], -1)
        logits: Tensor = self.linear(self.drop(read))
        return logits


def _scaled(vectors: Tensor) -> Tensor:
    root: float = vectors.shape[-1] ** 0.5
    return F.normalize(vectors, dim=-1) * root


def _mean(tokens: Tensor, kept: Tensor) -> Tensor:
    """The mean of [B, S, D] over the tokens that are kept, [B, S, 1]."""
    return torch.where(kept, tokens, 0.0).sum(1) / kept.sum(1)


def _matched(
    tokens: Tensor, kept: Tensor, others: Tensor, kept_others: Tensor, likeness: Tensor
) -> Tensor:
    """What tokens [B, S, D] differ from, and share with, their matches: two means [B, 2 * D].

    Args:
        likeness: [B, S, S], of tokens to the other text's.
    """
    matches = likeness.masked_fill(~kept_others.mT, -torch.inf).softmax(-1) @ others
    return torch.cat([_mean((tokens - matches).abs(), kept), _mean(tokens * matches, kept)], -1)


def encoded(
    backbone: Backbone, texts: Sequence[Texts], length: int, device: torch.device
) -> EncodedSplit:
    """Texts as tokens, at most `length` of each."""
    tokens = backbone.tokenize(texts, length, words=False)
    return EncodedSplit(tokens, None, 1, backbone.pad, device)
