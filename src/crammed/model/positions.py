"""Position encodings. Copied into exported models (see `blocks`)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .blocks import Config, Embedding

Tables = tuple[Tensor, ...]
"""What `Positions.tables` precomputes for all layers."""


class Positions:
    """Base of the position encodings, and itself the encoding `none`: no positional information.

    It is not a module: its parameters belong to the encoder, under the encoder's names.

    Attributes:
        native: formats of `crammed.export.native` whose model class computes the same.
    """

    native: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Config) -> None:
        pass

    def register(self, encoder: nn.Module) -> None:
        """Add this encoding's parameters to the encoder."""

    def start(self, encoder: nn.Module, std: float, generator: torch.Generator | None) -> None:
        """Initialise parameters added by `register`; modules among them initialise themselves."""

    def embed(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """Embeddings [B, S, D] with positions encoded in them."""
        return x

    def tables(self, length: int, device: torch.device) -> Tables:
        """Float32 tables that `attend` needs for rows of `length`; the same for every layer."""
        return ()

    def attend(
        self, q: Tensor, k: Tensor, mask: Tensor | None, tables: Tables
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries and keys [B, H, S, K] and `Attention`'s mask, with positions encoded in them.

        The returned mask may be numbers to add to the scores, [B or 1, H, S, S].
        """
        return q, k, mask


class LearnedPositions(Positions):
    """Adds a learned vector per position to the embeddings (Devlin et al. 2019)."""

    native = frozenset({"bert"})

    def __init__(self, config: Config) -> None:
        self._shape = config.max_length, config.width

    def register(self, encoder: nn.Module) -> None:
        encoder.positions = Embedding(*self._shape)

    def embed(self, encoder: nn.Module, x: Tensor) -> Tensor:
        table = encoder.get_parameter("positions.weight")
        return x + table[: x.shape[1]]


def sinusoidal_table(length: int, width: int, device: torch.device) -> Tensor:
    """Interleaved sines and cosines of Vaswani et al. 2017, [length, width] float32."""
    position = torch.arange(length, device=device, dtype=torch.float32)[:, None]
    pair = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angle = position * torch.exp(pair * (-math.log(10000.0) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width]


class SinusoidalPositions(Positions):
    """Adds sines and cosines to the embeddings (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, config: Config) -> None:
        self._width = config.width

    def embed(self, encoder: nn.Module, x: Tensor) -> Tensor:
        return x + sinusoidal_table(x.shape[1], self._width, x.device).to(x.dtype)


class ScaledSinusoidalPositions(SinusoidalPositions):
    """Adds sines and cosines times one learned scalar, which starts at D ** -0.5."""

    def register(self, encoder: nn.Module) -> None:
        encoder.position_scale = nn.Parameter(torch.empty(1))

    def start(self, encoder: nn.Module, std: float, generator: torch.Generator | None) -> None:
        nn.init.constant_(encoder.get_parameter("position_scale"), self._width**-0.5)

    def embed(self, encoder: nn.Module, x: Tensor) -> Tensor:
        scale = encoder.get_parameter("position_scale")
        table = sinusoidal_table(x.shape[1], self._width, x.device)
        return x + (scale * table).to(x.dtype)


def rotary_table(
    length: int, head_dim: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary angles, each [length, head_dim] float32, the halves equal."""
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    position = torch.arange(length, device=device, dtype=torch.float32)
    angle = torch.outer(position, 1.0 / theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, table: Tables) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of x [..., S, K], rotate-half layout."""
    cos, sin = (part.to(x.dtype) for part in table)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RotaryPositions(Positions):
    """Rotates queries and keys by angles proportional to the position (Su et al. 2021)."""

    native = frozenset({"modernbert"})

    def __init__(self, config: Config) -> None:
        self._head_dim, self._theta = config.head_dim, config.rotary_theta

    def tables(self, length: int, device: torch.device) -> Tables:
        return rotary_table(length, self._head_dim, self._theta, device)

    def query_for(self, key: Tensor, distance: int) -> Tensor:
        """The query [K] that scores highest `distance` tokens ahead, where all keys are `key` [K].

        Both are rotated by position, so their score depends only on how far apart they are.
        """
        cos, sin = (table[-1] for table in self.tables(abs(distance) + 1, key.device))
        return rotate(key, (cos, sin if distance > 0 else -sin))

    def attend(
        self, q: Tensor, k: Tensor, mask: Tensor | None, tables: Tables
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        return rotate(q, tables), rotate(k, tables), mask


class AlibiPositions(Positions):
    """Scores fall with the distance, in each head by another slope (Press et al. 2022).

    Head h of H has the slope 2 ** (-8 h / H), whatever H is, in both directions.
    """

    def __init__(self, config: Config) -> None:
        self._heads = config.width // config.head_dim

    def tables(self, length: int, device: torch.device) -> Tables:
        position = torch.arange(length, device=device)
        head = torch.arange(1, self._heads + 1, device=device)
        slopes = 2.0 ** (-8.0 * head / self._heads)
        return (-slopes[:, None, None] * (position[:, None] - position[None, :]).abs(),)

    def attend(
        self, q: Tensor, k: Tensor, mask: Tensor | None, tables: Tables
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        bias = tables[0][None].to(q.dtype)
        return q, k, bias if mask is None else bias.masked_fill(~mask, -math.inf)


POSITIONS: dict[str, type[Positions]] = {
    "none": Positions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "scaled-sinusoidal": ScaledSinusoidalPositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
}
"""The values of `model.positions`."""
