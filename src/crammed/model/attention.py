"""Blocks that mix the tokens of a row. Copied into exported models (see `blocks`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Block, Config, Linear, Scales, unit_rms
from .positions import POSITIONS, RotaryPositions, Tables

NEIGHBOURS = (-1, 1, -2, 2)
"""Offsets in tokens that heads start by attending to, in turn (`model.attention_start`)."""
NEIGHBOUR_KEY = 5.0
"""Initial value of these heads' key biases, for each rotary angle. By position alone, a head of 64
dimensions in a new model then gives its neighbour 94 % of its attention."""


def _count(scores: Tensor) -> Tensor:
    """How many tokens a token may attend to, [..., S, 1]."""
    return (scores > -float("inf")).sum(-1, keepdim=True).to(scores.dtype)


def _centred(scores: Tensor) -> Tensor:
    """Weights with mean 0 and length 1 (Richter and Wattenhofer 2020)."""
    shown, count = scores > -float("inf"), _count(scores)
    scores = scores.where(shown, 0.0)
    centred = (scores - scores.sum(-1, keepdim=True) / count).where(shown, 0.0)
    return centred * (centred.square().sum(-1, keepdim=True) + 1e-5 * count).rsqrt()


def _running(function: Callable[..., Tensor], nothing: float) -> Callable[[Tensor], Tensor]:
    """A function of each score and those before it, whose neutral element is `nothing`."""

    def weights(scores: Tensor) -> Tensor:
        shown = scores > -float("inf")
        totals = function(scores.where(shown, nothing), -1) * _count(scores).rsqrt()
        return totals.where(shown, 0.0)

    return weights


WEIGHING: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: scores.softmax(-1),
    "relu": lambda scores: scores.relu() / _count(scores),  # Wortsman et al. 2023
    "sigmoid": lambda scores: (scores - _count(scores).log()).sigmoid(),  # Ramapuram et al. 2025
    "identity": lambda scores: scores.where(scores > -float("inf"), 0.0) / _count(scores),
    "layer-norm": _centred,
    "running-sum": _running(torch.cumsum, 0.0),
    "running-log-sum-exp": _running(torch.logcumsumexp, -1e4),  # from -inf, gradients are NaN
}
"""The values of `model.weighing`: functions of scores [..., S, S], which are -inf where a token may
not be attended to, in float32 or more."""


class Attention(Block):
    """Attention over [B, S, D] (Vaswani et al. 2017), by default softmax in both directions."""

    def __init__(self, config: Config, index: int = 0) -> None:
        super().__init__()
        self.width: int = config.width
        self.head_dim = config.head_dim
        own: float | None = config.attention_dropout
        self.dropout: float = config.dropout if own is None else own
        self.norm_eps: float | None = None if config.qk_norm == "none" else config.norm_eps
        self.position_encoding = POSITIONS[config.positions](config)
        # NormFormer (Shleifer et al. 2021) scales what each head adds.
        heads = config.width // config.head_dim if config.norm == "normformer" else 0
        self.head_scales = Scales(*[1.0] * heads) if heads else None
        self.key_heads: int | None = config.key_heads
        self.weighing: str = config.weighing
        self.limited = config.scope == "causal" or bool(
            config.scope == "local" and index % config.global_every
        )
        self.ahead: int = 0 if config.scope == "causal" else config.window // 2
        self.behind: int | None = None if config.scope == "causal" else config.window // 2
        if config.key_heads is None:
            # Queries, keys and values in this order, as in ModernBERT's Wqkv.
            self.products = {"qkv": 3, "out": 1}
            self.qkv = Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        else:  # several heads of queries share one of keys and values (Ainslie et al. 2023)
            self.products = {"q": 1, "kv": 2, "out": 1}
            few = config.key_heads * config.head_dim
            self.q = Linear(config.width, config.width, bias=config.qkv_bias)
            self.kv = Linear(config.width, 2 * few, bias=config.qkv_bias)
        self.out = Linear(config.width, config.width, bias=config.linear_bias)

    def mixing(self, length: int) -> int:
        """Those of the scores and of the weighted sums of values."""
        return 2 * length * self.width

    def _parts(
        self, x: Tensor, tables: Tables, mask: Tensor | None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values [B, H, S, K] and the mask, with positions encoded in them."""
        if self.key_heads is None:
            q, k, v = self.qkv(x).unflatten(-1, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4)
        else:
            q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            shared = self.kv(x).unflatten(-1, (2, -1, self.head_dim)).permute(2, 0, 3, 1, 4)
            k, v = shared.repeat_interleave(q.shape[1] // self.key_heads, 2)
        if self.limited:
            mask = self._within_reach(mask, x)
        if self.norm_eps is not None:
            q, k = unit_rms(q, self.norm_eps), unit_rms(k, self.norm_eps)
        if values is not None:
            v = v + values.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, mask = self.position_encoding.attend(q, k, mask, tables)
        return q, k, v, mask

    def _within_reach(self, mask: Tensor | None, x: Tensor) -> Tensor:
        """The mask, without tokens that are too far away; every token may attend to itself."""
        place = torch.arange(x.shape[1], device=x.device)
        ahead = place - place[:, None]
        near = ahead <= self.ahead
        if self.behind is not None:
            near = near & (ahead >= -self.behind)
        # Without this, padding might attend to nothing, and its NaN would spread.
        return near if mask is None else (mask & near) | (ahead == 0)

    def probabilities(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        """How much each token attends to each, before dropout, [B, H, S, S]; for inspection.

        Arguments as in `forward`, which never holds all of these numbers in memory.
        """
        q, k, _, mask = self._parts(x, tables, mask)
        return self._weights(q, k, mask)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        if mask is not None and mask.dtype.is_floating_point:
            scores = scores + mask
        elif mask is not None:
            scores = scores.masked_fill(~mask, -float("inf"))
        precise = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return WEIGHING[self.weighing](precise).to(scores.dtype)

    def mixed(
        self, x: Tensor, tables: Tables, mask: Tensor | None, values: Tensor | None = None
    ) -> Tensor:
        """The weighted sums of values, heads concatenated, [B, S, D]; arguments as in `forward`."""
        q, k, v, mask = self._parts(x, tables, mask, values)
        dropout = self.dropout if self.training else 0.0
        if self.weighing == "softmax":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        else:
            y = F.dropout(self._weights(q, k, mask), dropout) @ v
        if self.head_scales is not None:
            y = y * self.head_scales.weight[:, None, None].to(y.dtype)
        return y.transpose(1, 2).flatten(-2)

    def forward(
        self, x: Tensor, tables: Tables, mask: Tensor | None, values: Tensor | None = None
    ) -> Tensor:
        """Attention over x [B, S, D].

        Args:
            tables: from `Positions.tables`, for rows of this length.
            mask: True where a token may be attended to, [B, 1, 1, S], or [B, 1, S, S] for each
                attending token separately; None allows all.
            values: [B, S, D], added to the concatenated values of all heads.
        """
        output: Tensor = self.out(self.mixed(x, tables, mask, values))
        return output

    def look_at(self, distances: Sequence[int]) -> None:
        """Set the biases of queries and keys so that each head attends at a given distance.

        Scores are then the sum of a part that depends only on the distance and one that depends on
        the tokens, which is small in a new model.

        Args:
            distances: in tokens ahead, one for each head; negative ones look back.

        Raises:
            TypeError: the positions are not rotary.
        """
        if not isinstance(self.position_encoding, RotaryPositions):
            raise TypeError("only rotary positions let a head look at a distance")
        key = torch.zeros(self.head_dim)
        key[: self.head_dim // 2] = NEIGHBOUR_KEY  # angle 0 in every rotated pair
        queries = [self.position_encoding.query_for(key, distance) for distance in distances]
        with torch.no_grad():
            bias = self.qkv.get_parameter("bias").unflatten(0, (3, -1, self.head_dim))
            bias[0] = torch.stack(queries)
            bias[1] = key


def look_at_neighbours(model: nn.Module, *, first_only: bool = False) -> None:
    """Make heads attend to `NEIGHBOURS` at first, in turn: those of all layers or of the first."""
    distances = cycle(NEIGHBOURS)
    blocks = [block for block in model.modules() if isinstance(block, Attention)]
    for block in blocks[:1] if first_only else blocks:
        block.look_at([next(distances) for _ in range(block.width // block.head_dim)])
