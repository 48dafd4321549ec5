"""Vectors of texts: the mean of an encoder's hidden states; and two texts compared by theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.keys import key
from crammed.tasks.rows import Texts


class MeanOfTokens(nn.Module):
    """Hidden states to their mean over the tokens of each row."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        return _mean(self.encoder(ids, mask, types).float(), mask)


class PairClassifier(nn.Module):
    """Compares the two texts of a sequence by the means of their hidden states.

    Args:
        encoder: (ids, mask, types) -> hidden states [B, S, width].
        sep: id of the token that ends each text.
        dropout: of what the linear layer reads.
        seed: decides the layer's weights.
    """

    def __init__(
        self, encoder: nn.Module, width: int, sep: int, outputs: int, dropout: float, seed: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.drop = nn.Dropout(dropout)
        self.linear = nn.Linear(4 * width, outputs)
        self._sep = sep
        draw = torch.Generator().manual_seed(key(seed, "pairs"))
        nn.init.normal_(self.linear.weight, std=0.02, generator=draw)
        nn.init.zeros_(self.linear.bias)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """Logits [B, outputs]."""
        hidden = self.encoder(ids, mask, types).float()
        first = ends_before(ids, self._sep) == 0
        u, v = _mean(hidden, mask & first), _mean(hidden, mask & ~first)
        logits: Tensor = self.linear(self.drop(torch.cat([u, v, (u - v).abs(), u * v], -1)))
        return logits


def ends_before(ids: Tensor, sep: int) -> Tensor:
    """[B, S] how many texts of each sequence have ended before a token: 0 for those of the first.

    Args:
        sep: id of the token that ends each text, and belongs to it.
    """
    ends = (ids == sep).long()
    return ends.cumsum(1) - ends


def _mean(hidden: Tensor, kept: Tensor) -> Tensor:
    """Mean [B, D] of the hidden states [B, S, D] that are kept [B, S]."""
    kept_states = torch.where(kept[..., None], hidden, 0.0)
    return kept_states.sum(1) / kept.sum(1, keepdim=True).clamp(min=1)


def encoded(
    backbone: Backbone, texts: Sequence[Texts], length: int, device: torch.device
) -> EncodedSplit:
    """Texts as tokens, at most `length` of each."""
    tokens = backbone.tokenize(texts, length, words=False)
    labels: NDArray[np.float32] = np.zeros(len(texts), np.float32)
    return EncodedSplit(tokens, labels, 1, backbone.pad, device)
