"""What mixes the tokens of a row. Copied into exported models (see `blocks`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .attention import Attention
from .blocks import Block, Config, Nothing
from .positions import Tables

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
        size = torch.tensor(x.shape[-2], device=x.device)
        places = torch.arange(x.shape[-2], device=x.device)
        if mask is not None:
            x = x * mask[:, 0, 0, :, None]
            size = mask[:, 0].sum(-1, keepdim=True)
            places = mask[:, 0, 0].cumsum(-1) - 1  # padding may come first
        width = torch.tensor(self.width, device=x.device)
        along = self._waves(places, size, x)
        across = self._waves(torch.arange(self.width, device=x.device), width, x)
        output: Tensor = along[0] @ (x @ across[0]) - along[1] @ (x @ across[1])
        return output

    @staticmethod
    def _waves(places: Tensor, size: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of transforms of these sizes, divided by their roots, [..., L, L]."""
        angle = places[..., :, None] * places[..., None, :] % size * (2 * math.pi / size)
        return (angle.cos() / size.sqrt()).to(x.dtype), (angle.sin() / size.sqrt()).to(x.dtype)


MIXERS: dict[str, type[Block]] = {
    "attention": Attention,
    "fourier": FourierMixing,
    "fourier-hybrid": FourierMixing,
    "none": Nothing,
}
"""The values of `model.mixer`."""


def mixer_of(config: Config, index: int) -> Block:
    """The mixer of a layer."""
    if config.mixer == "fourier-hybrid" and index >= config.layers - HYBRID:
        return Attention(config, index)
    return MIXERS[config.mixer](config, index)
