"""Training losses: logits [N, V] and the right tokens [N] -> a sum over the N predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crammed.config import RunConfig
from crammed.config.losses import CrossEntropyConfig, ErrorsConfig, FocalConfig, IncorrectOnlyConfig


def _cross_entropy(logits: Tensor, labels: Tensor, config: CrossEntropyConfig) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=config.smoothing)


def _focal(logits: Tensor, labels: Tensor, config: FocalConfig) -> Tensor:
    each = F.cross_entropy(logits, labels, reduction="none")
    # Below a gamma of 1, the slope at 0 would be infinite.
    wrong = (-(-each).expm1()).clamp(min=torch.finfo(each.dtype).tiny)
    return wrong.pow(config.gamma).mul(each).sum()


def _incorrect_only(logits: Tensor, labels: Tensor, config: IncorrectOnlyConfig) -> Tensor:
    each = F.cross_entropy(logits, labels, reduction="none")
    return each.where(logits.argmax(-1) != labels, 0.0).sum()


def _errors(
    size: Callable[[Tensor], Tensor], logits: Tensor, labels: Tensor, config: ErrorsConfig
) -> Tensor:
    own = logits.gather(-1, labels[:, None])
    others = size(logits).sum() - size(own).sum()
    return (others + config.weight * size(own - config.target).sum()) / logits.shape[-1]


LOSSES: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "focal": _focal,
    "incorrect-only": _incorrect_only,
    "squared": partial(_errors, torch.square),
    "absolute": partial(_errors, torch.abs),
}
"""Losses by their name in `Loss`, but for `balanced`, which takes weights, and `embedding`, which
has no logits."""


def target_weights(log_shares: Tensor, power: float) -> Tensor:
    """What each token of the vocabulary weighs in `balanced`, [V]; 1 on average over the text.

    Args:
        log_shares: [V] natural logarithms of the tokens' shares of the text.
    """
    weights = (-power * log_shares).exp()
    return weights / (log_shares.exp() * weights).sum()


def summed_loss(
    logits: Tensor, labels: Tensor, config: RunConfig, weights: Tensor | None = None
) -> Tensor:
    """The configured loss, with the z-loss if there is one.

    Args:
        weights: `target_weights` for `balanced`; None counts all tokens alike.
    """
    if config.loss.name == "balanced":
        if weights is not None:  # models of others may have outputs that stand for no token
            weights = F.pad(weights, (0, logits.shape[-1] - len(weights)))
        loss = F.cross_entropy(logits, labels, weights, reduction="sum")
    else:
        loss = LOSSES[config.loss.name](logits, labels, config.loss)
    if weight := config.masking.z_loss:
        loss = loss + weight * logits.logsumexp(-1).square().sum()
    return loss


def distance(hidden: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Summed squared distances of hidden states [N, D] from embeddings, which do not move."""
    return (hidden.float() - table.detach()[labels]).square().sum()
