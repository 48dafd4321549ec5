"""What mixes the tokens of a row. Copied into exported models (see `blocks`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .attention import Attention
from .blocks import ACTIVATIONS, Affine, Block, Config, Linear, Nothing
from .positions import POSITIONS, Tables

HYBRID = 2
"""How many layers have attention in `fourier-hybrid`: the last ones (Lee-Thorp et al. 2022)."""


class FourierMixing(Block):
    """The real part of a Fourier transform over the row and the width (Lee-Thorp et al. 2022).

    The transform over a row is as long as the row is without its padding.
    """

    products = {}  # noqa: RUF012

    def __init__(self, config: Config, index: int = 0) -> None:
        super().__init__()
        self.width: int = config.width

    def mixing(self, length: int) -> int:
        """Both transforms, as products with cosines and with sines."""
        return 2 * self.width * (self.width + length)

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        """Mix; `tables` and `mask` as in `Attention`.

        Raises:
            ValueError: the mask keeps documents apart, which a transform over the row cannot.
        """
        if mask is not None and mask.shape[-2] > 1:
            raise ValueError("Fourier mixing is over the whole row: it allows no mask per token")
        size = torch.full((), x.shape[-2], device=x.device)  # not copied from the host
        places = torch.arange(x.shape[-2], device=x.device)
        if mask is not None:
            x = x * mask[:, 0, 0, :, None]
            size = mask[:, 0].sum(-1, keepdim=True)
            places = mask[:, 0, 0].cumsum(-1) - 1  # padding may come first
        width = torch.full((), self.width, device=x.device)
        along = self._waves(places, size, x)
        across = self._waves(torch.arange(self.width, device=x.device), width, x)
        output: Tensor = along[0] @ (x @ across[0]) - along[1] @ (x @ across[1])
        return output

    @staticmethod
    def _waves(places: Tensor, size: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of transforms of these sizes, divided by their roots, [..., L, L]."""
        angle = places[..., :, None] * places[..., None, :] % size * (2 * math.pi / size)
        return (angle.cos() / size.sqrt()).to(x.dtype), (angle.sin() / size.sqrt()).to(x.dtype)


class GatedAttention(Block):
    """Attention of one head whose output gates another branch (GAU, FLASH; Hua et al. 2022).

    It takes the place of the feed-forward block as well. Queries and keys share one small product;
    the square of a positive score is the weight.
    """

    products = {"up": 2, "shared": 1, "down": 1}  # noqa: RUF012

    def __init__(self, config: Config, index: int = 0) -> None:
        super().__init__()
        self.hidden: int = config.ffn_hidden
        self.head_dim: int = config.head_dim
        own: float | None = config.attention_dropout
        self.drop = nn.Dropout(config.dropout if own is None else own)
        self.activation = ACTIVATIONS[config.activation].function
        self.position_encoding = POSITIONS[config.positions](config)
        self.up = Linear(config.width, config.ffn_width, bias=config.linear_bias)
        self.shared = Linear(config.width, config.head_dim, bias=config.linear_bias)
        self.down = Linear(config.ffn_hidden, config.width, bias=config.linear_bias)
        self.query, self.key = Affine(config.head_dim), Affine(config.head_dim)

    def mixing(self, length: int) -> int:
        """Those of the scores and of the weighted sums of values."""
        return length * (self.head_dim + self.hidden)

    def probabilities(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        """The weights, [B, 1, S, S], which need not add up to 1."""
        base = self.activation(self.shared(x))[:, None]
        q, k, mask = self.position_encoding.attend(self.query(base), self.key(base), mask, tables)
        count: int | Tensor = x.shape[1]
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, 0.0)
            count = mask.sum(-1, keepdim=True)
        return (scores / count).relu().square()

    def forward(self, x: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
        """Mix; `tables` and `mask` as in `Attention`."""
        values, gate = self.activation(self.up(x)).chunk(2, dim=-1)
        mixed = self.drop(self.probabilities(x, tables, mask))[:, 0] @ values
        output: Tensor = self.down(mixed * gate)
        return output


MIXERS: dict[str, type[Block]] = {
    "attention": Attention,
    "fourier": FourierMixing,
    "fourier-hybrid": FourierMixing,
    "gated-attention": GatedAttention,
    "none": Nothing,
}
"""The values of `model.mixer`."""


def mixer_of(config: Config, index: int) -> Block:
    if config.mixer == "fourier-hybrid" and index >= config.layers - HYBRID:
        return Attention(config, index)
    return MIXERS[config.mixer](config, index)
