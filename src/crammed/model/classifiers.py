"""What fine-tuning puts on the encoder: one answer for a text, or one for every token.

Copied into exported models together with the encoder.

Shapes: B rows, S tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .blocks import Config, Linear
from .encoder import Encoder, HeadTransform
from .layer import picked


def first_token(mask: Tensor) -> Tensor:
    """Where each text begins, [B, 1], by its mask [B, S]: padding may come before it."""
    return mask.long().argmax(1, keepdim=True)


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _max(hidden: Tensor, mask: Tensor | None) -> Tensor:
    return (hidden if mask is None else hidden.masked_fill(~mask, -torch.inf)).amax(1)


def _log_sum_exp(hidden: Tensor, mask: Tensor | None) -> Tensor:
    precise = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    shown = precise if mask is None else precise.masked_fill(~mask, -torch.inf)
    return shown.logsumexp(1).to(hidden.dtype)


POOLINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "mean": _mean,
    "max": _max,
    "log-sum-exp": _log_sum_exp,
}
"""The values of `model.pooling` besides `first`: functions of hidden states [B, S, D] and of a mask
[B, S, 1], False at padding."""


class SequenceClassifier(nn.Module):
    """Maps a text to `outputs` logits, through the model family's own head."""

    def __init__(self, config: Config, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        self.pooling, self.classifier_kind = config.pooling, config.classifier
        pooled = config.width
        if config.classifier == "pooler":
            pooled = config.pooler_width or config.width
            self.pooler = Linear(config.width, pooled)
        else:  # ModernBERT classifies through the transform of its masked-language-model head
            self.head = HeadTransform(config)
        self.drop = nn.Dropout(config.dropout)
        self.classifier = Linear(pooled, outputs)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Logits [B, outputs]."""
        return self.classify(self.pooled(self.encoder(ids, mask, types), mask))

    def pooled(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Hidden states [B, S, D] to what stands for the texts [B, D]."""
        if self.pooling == "first":
            return hidden[:, 0] if mask is None else picked(hidden, first_token(mask))[:, 0]
        return POOLINGS[self.pooling](hidden, None if mask is None else mask.bool().unsqueeze(-1))

    def classify(self, text: Tensor) -> Tensor:
        """What stands for the texts [B, D] to logits [B, outputs]."""
        read = self.pooler(text).tanh() if self.classifier_kind == "pooler" else self.head(text)
        logits: Tensor = self.classifier(self.drop(read))
        return logits


class TokenClassifier(nn.Module):
    """Maps every token to `outputs` logits; through the head transform in ModernBERT's family."""

    def __init__(self, config: Config, vocab_size: int, outputs: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, vocab_size)
        through = config.classifier == "head-transform"
        self.head = HeadTransform(config) if through else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.classifier = Linear(config.width, outputs)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Logits [B, S, outputs]."""
        return self.classify(self.encoder(ids, mask, types))

    def classify(self, hidden: Tensor) -> Tensor:
        """Hidden states [B, S, D] to logits [B, S, outputs]."""
        logits: Tensor = self.classifier(self.drop(self.head(hidden)))
        return logits
