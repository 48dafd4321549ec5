"""Vectors of texts: the mean of an encoder's hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.finetuning.batches import EncodedSplit
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


def encoded(
    backbone: Backbone, texts: Sequence[Texts], length: int, device: torch.device
) -> EncodedSplit:
    """Texts as tokens, at most `length` of each."""
    tokens = backbone.tokenize(texts, length, words=False)
    labels: NDArray[np.float32] = np.zeros(len(texts), np.float32)
    return EncodedSplit(tokens, labels, 1, backbone.pad, device)
