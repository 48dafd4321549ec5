"""Funnels: layers in the middle compute fewer tokens (Dai et al. 2020).

Before each layer of `model.pool_at`, the mean of every two neighbours takes their place. After the
last of these layers, each token gets the state of what it has become part of, added to its own from
before the first pooling; the last layers compute all tokens again. So every token has a state of
its own in the end, the first one of a text as well, and need not be kept apart from the pooling.

Tokens are paired, and their positions counted, from where each text begins, behind any padding.
Where documents may not see each other, a pair within two of them stands for its first token alone,
and the other one skips these layers: nothing passes from one document to the other.

Copied into exported models (see `blocks`). Shapes as in `encoder`; P = ceil(S / 2) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import Config
from .layer import Layer, picked
from .positions import Tables


def poolings(config: Config, index: int) -> int:
    """How many times the tokens that a layer computes have been halved."""
    if index >= config.layers - config.unpooled_layers:
        return 0
    places: Sequence[int] = config.pool_at
    return sum(index >= place for place in places)


def pooled_length(config: Config, index: int, length: int) -> int:
    """How many tokens a layer computes of a row of `length`."""
    return -(-length // (1 << poolings(config, index)))


class Pairs(NamedTuple):
    """Neighbouring tokens, two by two.

    Attributes:
        weights: of the tokens in their pairs, [B, P, 2]: False where a token is padding, or of
            another document than the one before it; None if all are True.
        length: how many tokens there are, S.
    """

    weights: Tensor | None
    length: int

    @classmethod
    def of(cls, length: int, mask: Tensor | None) -> Pairs:
        """Pairs of `length` tokens, given `Attention`'s mask."""
        if mask is None:
            return cls(None, length)
        if mask.shape[-2] == 1:
            seen = mask[:, 0, 0]
            return cls(torch.stack((seen[:, ::2], F.pad(seen, (0, 1))[:, 1::2]), -1), length)
        second = F.pad(mask[:, 0].diagonal(1, -2, -1), (0, 1))[:, ::2]
        return cls(torch.stack((torch.ones_like(second), second), -1), length)

    def pool(self, x: Tensor) -> Tensor:
        """The means [B, P, D] of x [B, S, D]."""
        second = torch.cat((x, x[:, -1:]), 1)[:, 1::2]  # in an odd row, the last one once more
        both = torch.stack((x[:, ::2], second), 2)
        if self.weights is None:
            return both.mean(2)
        weights = self.weights[..., None].to(x.dtype)
        return (both * weights).sum(2) / weights.sum(2).clamp(min=1.0)

    def spread(self, x: Tensor) -> Tensor:
        """What each token [B, S, D] is part of, from x [B, P, D]; 0 where its weight is."""
        both = x[:, :, None].expand(-1, -1, 2, -1)
        if self.weights is not None:
            both = both * self.weights[..., None].to(x.dtype)
        return both.flatten(1, 2)[:, : self.length]


def pooled_mask(mask: Tensor | None) -> Tensor | None:
    """`Attention`'s mask for pairs: a pair is padding if both tokens are; else its first counts."""
    if mask is None:
        return None
    if mask.shape[-2] > 1:
        return mask[..., ::2, ::2]
    return mask[..., ::2] | F.pad(mask, (0, 1))[..., 1::2]


class Funnel:
    """The layers that compute fewer tokens, called as one layer is.

    Args:
        stages: the layers after each pooling.
        tables: gives the position tables for rows of some length, for every n-th token.
    """

    recompute = False

    def __init__(
        self, stages: Sequence[Sequence[Layer]], tables: Callable[[int, int, torch.device], Tables]
    ) -> None:
        self._stages = stages
        self._tables = tables

    def probabilities(self, *_: object) -> None:
        """Nothing: its tokens are not those of the row."""

    def __call__(
        self, x: Tensor, tables: Tables, mask: Tensor | None, *more: Tensor | None
    ) -> Tensor:
        """The states [B, S, D] of all tokens; arguments as in `Layer`."""
        whole, length = x, x.shape[1]
        back: Tensor | None = None
        if mask is not None and mask.shape[-2] == 1:  # texts to the front, padding behind them
            begin = mask[:, 0, 0].long().argmax(-1, keepdim=True)
            place = torch.arange(length, device=x.device)
            order, back = place + begin, place - begin
            order = order.where(order < length, order - length)  # ONNX has no remainder of these
            back = back.where(back >= 0, back + length)
            x = picked(x, order)
            more = tuple(None if each is None else picked(each, order) for each in more)
            mask = mask.gather(-1, order[:, None, None])
        levels: list[Pairs] = []
        for level, layers in enumerate(self._stages, 1):
            pairs = Pairs.of(x.shape[1], mask)
            x = pairs.pool(x)
            more = tuple(None if each is None else pairs.pool(each) for each in more)
            mask = pooled_mask(mask)
            given = self._tables(length, 1 << level, x.device)
            for layer in layers:
                x = layer(x, given, mask, *more)
            levels.append(pairs)
        for pairs in reversed(levels):
            x = pairs.spread(x)
        return whole + picked(x, back)


def with_funnel(
    config: Config, layers: Sequence[Layer], tables: Callable[[int, int, torch.device], Tables]
) -> list[Callable[..., Tensor]]:
    """The layers, those between the first pooling and the last layers in a `Funnel`."""
    levels = [poolings(config, n) for n in range(len(layers))]
    stages = [
        [layer for layer, level in zip(layers, levels, strict=True) if level == n]
        for n in range(1, max(levels) + 1)
    ]
    first, last = levels.index(1), len(layers) - config.unpooled_layers
    return [*layers[:first], Funnel(stages, tables), *layers[last:]]
