"""Vectors of texts: the mean of an encoder's hidden states; and two texts compared by theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
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
        hidden: Tensor = self.encoder(ids, mask, types).float()
        kept = mask[..., None]
        return torch.where(kept, hidden, 0.0).sum(1) / kept.sum(1)


class PairClassifier(nn.Module):
    """Compares two texts, each a sequence of its own, by the means of their hidden states.

    A linear layer reads u, v, |u - v| and u * v, as in InferSent (Conneau et al. 2017), but u and v
    are scaled to the same length, so that their product tells the angle between them and not how
    long they are. The root of the width gives the elements the scale that a norm leaves.

    Args:
        encoder: (ids, mask, types) -> hidden states [2 * B, S, width].
        dropout: of what the linear layer reads.
        seed: decides the layer's weights.
    """

    def __init__(
        self, encoder: nn.Module, width: int, outputs: int, dropout: float, seed: int
    ) -> None:
        super().__init__()
        self.mean = MeanOfTokens(encoder)
        self.drop = nn.Dropout(dropout)
        self.linear = nn.Linear(4 * width, outputs)
        draw = torch.Generator().manual_seed(key(seed, "pairs"))
        nn.init.normal_(self.linear.weight, std=0.02, generator=draw)
        nn.init.zeros_(self.linear.bias)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """Logits [B, outputs] of the sequences [2 * B, S]."""
        means = self.mean(ids, mask, types)
        means = F.normalize(means, dim=-1) * means.shape[-1] ** 0.5
        u, v = means[::2], means[1::2]
        logits: Tensor = self.linear(self.drop(torch.cat([u, v, (u - v).abs(), u * v], -1)))
        return logits


def encoded(
    backbone: Backbone, texts: Sequence[Texts], length: int, device: torch.device
) -> EncodedSplit:
    """Texts as tokens, at most `length` of each."""
    tokens = backbone.tokenize(texts, length, words=False)
    labels: NDArray[np.float32] = np.zeros(len(texts), np.float32)
    return EncodedSplit(tokens, labels, 1, backbone.pad, device)
