"""Position encodings. Copied into exported models (see `blocks`)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Config, Embedding

Tables = tuple[Tensor, ...]
"""What `Positions.tables` precomputes for all layers."""


def used(encoder: nn.Module, name: str) -> Tensor:
    """The encoder's parameter of this dotted name, or the tensor that is used in its place."""
    module, _, own = name.rpartition(".")
    found: Tensor = getattr(encoder.get_submodule(module), own)
    return found


class Positions:
    """Base of the position encodings, and itself the encoding `none`: no positional information.

    It is not a module: its parameters belong to the encoder, under the encoder's names.

    Attributes:
        native: formats of `crammed.export.native` whose model class computes the same.
        bounded: whether positions from `max_length` on have no encoding.
    """

    native: ClassVar[frozenset[str]] = frozenset()
    bounded: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        pass

    def register(self, encoder: nn.Module) -> None:
        """Add this encoding's parameters to the encoder."""

    def start(self, encoder: nn.Module, std: float, generator: torch.Generator | None) -> None:
        """Initialise parameters added by `register`; modules among them initialise themselves."""

    def embed(self, encoder: nn.Module, x: Tensor, at: Tensor | None) -> Tensor:
        """Embeddings [B, S, D] with positions encoded in them.

        Args:
            at: the positions of the tokens, [B, S] or [1, S]; None counts from 0.
        """
        return x

    def tables(self, at: Tensor) -> Tables:
        """Tables of float32 or whole numbers up to 256, the same for every layer.

        Args:
            at: the positions of the tokens, [S], or [B, 1, S] where rows have their own.
        """
        return ()

    def looked_up(self, encoder: nn.Module, tables: Tables) -> Tables:
        """What `attend` takes, from `tables` and the parameters added by `register`."""
        return tables

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
    bounded = True

    def __init__(self, config: Config) -> None:
        self._shape = config.max_length, config.width

    def register(self, encoder: nn.Module) -> None:
        encoder.positions = Embedding(*self._shape)

    def embed(self, encoder: nn.Module, x: Tensor, at: Tensor | None) -> Tensor:
        table = used(encoder, "positions.weight").to(x.device)
        return x + (table[: x.shape[1]] if at is None else F.embedding(at, table))


class SinusoidalPositions(Positions):
    """Adds sines and cosines to the embeddings (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, config: Config) -> None:
        self._width = config.width

    def embed(self, encoder: nn.Module, x: Tensor, at: Tensor | None) -> Tensor:
        return x + self._table(x, at).to(x.dtype)

    def _table(self, x: Tensor, at: Tensor | None) -> Tensor:
        """Interleaved sines and cosines, [..., D] float32."""
        at = torch.arange(x.shape[1], device=x.device) if at is None else at
        pair = torch.arange(0, self._width, 2, device=at.device, dtype=torch.float32)
        angle = at[..., None].float() * torch.exp(pair * (-math.log(10000.0) / self._width))
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self._width]


class ScaledSinusoidalPositions(SinusoidalPositions):
    """Adds sines and cosines times one learned scalar, which starts at D ** -0.5."""

    def register(self, encoder: nn.Module) -> None:
        encoder.position_scale = nn.Parameter(torch.empty(1))

    def start(self, encoder: nn.Module, std: float, generator: torch.Generator | None) -> None:
        nn.init.constant_(encoder.get_parameter("position_scale"), self._width**-0.5)

    def embed(self, encoder: nn.Module, x: Tensor, at: Tensor | None) -> Tensor:
        scale = used(encoder, "position_scale").to(x.device)
        return x + (scale * self._table(x, at)).to(x.dtype)


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

    def tables(self, at: Tensor) -> Tables:
        """Cosines and sines of the angles, each [..., K] float32, the halves equal."""
        pair = torch.arange(0, self._head_dim, 2, device=at.device, dtype=torch.float32)
        angle = at[..., None].float() * (1.0 / self._theta ** (pair / self._head_dim))
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    def query_for(self, key: Tensor, distance: int) -> Tensor:
        """The query [K] that scores highest `distance` tokens ahead, where all keys are `key` [K].

        Both are rotated by position, so their score depends only on how far apart they are.
        """
        cos, sin = self.tables(torch.tensor(abs(distance), device=key.device))
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

    def tables(self, at: Tensor) -> Tables:
        head = torch.arange(1, self._heads + 1, device=at.device)
        slopes = 2.0 ** (-8.0 * head / self._heads)
        at = at.reshape(-1, 1, at.shape[-1])  # the heads come second
        return (-slopes[:, None, None] * (at[..., :, None] - at[..., None, :]).abs(),)

    def attend(
        self, q: Tensor, k: Tensor, mask: Tensor | None, tables: Tables
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        bias = tables[0].to(q.dtype)
        return q, k, bias if mask is None else bias.masked_fill(~mask, -math.inf)


class T5Positions(AlibiPositions):
    """Adds a learned number to each score, by head and distance (Raffel et al. 2020).

    Distances share a number in buckets that grow with them, 16 in each direction; the layers share
    all of them.
    """

    begins = (*range(1, 9), 12, 16, 23, 32, 46, 64, 91)
    """Where buckets begin: single distances up to 8, then factors of the square root of 2."""

    def register(self, encoder: nn.Module) -> None:
        encoder.distances = Embedding(2 * (len(self.begins) + 1), self._heads)

    def tables(self, at: Tensor) -> Tables:
        ahead = at[..., None, :] - at[..., :, None]
        far = ahead.abs()
        bucket = torch.zeros_like(far)
        for begin in self.begins:  # a table of them would be copied from the host
            bucket += far >= begin
        return (bucket + (ahead > 0) * (len(self.begins) + 1),)

    def looked_up(self, encoder: nn.Module, tables: Tables) -> Tables:
        table = used(encoder, "distances.weight").to(tables[0].device)
        numbers = F.embedding(tables[0].long(), table)  # [S, S, H], or [B, 1, S, S, H]
        heads_first = numbers.movedim(-1, -3)
        return (heads_first if heads_first.dim() == 3 else heads_first.squeeze(1),)


POSITIONS: dict[str, type[Positions]] = {
    "none": Positions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "scaled-sinusoidal": ScaledSinusoidalPositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "t5": T5Positions,
}
"""The values of `model.positions`."""
