"""Masking on the device: a fixed number of positions in each row, drawn by keyed hashes.

Apart from the seed, a row's masks depend only on its number in the stream: not on the microbatch,
the number of workers, the device or restarts. Fixed counts keep every shape static.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from crammed.config import RunConfig
from crammed.data.tokenization.tokenizer import Specials
from crammed.keys import key

_LOW = 0xFFFFFFFF
SPAN = 3.8  # words on average (Joshi et al. 2020)


class Beginnings(Protocol):
    """Where units begin: a table [V] of tokens, or what also looks at their neighbours."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Whether each token of rows [B, S] begins a unit, [B, S]."""


@dataclass(frozen=True)
class MaskedRows:
    """The rows that the model sees, and what it must predict.

    Attributes:
        ids: [B, S] token ids after corruption.
        positions: [B, N] the predicted positions, in random order.
        labels: [B, N] the original ids there.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor


def mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash of int64 values; the factors are too small to overflow."""
    x = (((x >> 16) ^ x) * 0x45D9F3B) & _LOW
    x = (((x >> 16) ^ x) * 0x45D9F3B) & _LOW
    return (x >> 16) ^ x


def keyed_bits(word: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    """32 uniform bits for each (row number, column): [B, columns] int64 in [0, 2**32).

    Args:
        word: the key of the draw, from `crammed.keys.key`. As a [] int64 tensor it does not become
            a constant of a compiled function, which can then be used for every seed.
        rows: [B] int64 row numbers in the stream, at least 0.
    """
    column = torch.arange(columns, device=rows.device)
    state = mix((rows & _LOW) ^ (word & _LOW))
    state = mix(state ^ ((rows >> 32) & _LOW) ^ (word >> 32))
    state = mix(state[:, None] ^ mix(column + 1))
    return mix(state ^ (word & _LOW))


def shuffled(bits: Tensor, count: int) -> Tensor:
    """The first positions, [B, count], in the order of random bits [B, S]; ties stay in order."""
    length = bits.shape[1]
    # Adding the position to the scaled bits breaks ties, so that every device sorts alike.
    return smallest(bits * length + torch.arange(length, device=bits.device), count).indices


def smallest(values: Tensor, count: int) -> torch.return_types.topk:
    """The smallest values in each row of [B, S], in order, and where they are, each [B, count].

    Not with `Tensor.sort`: for a GPU, the compiler writes that out as a network of comparisons,
    which takes Triton 42 seconds of a CPU core for rows of 128.
    """
    return values.topk(count, dim=1, largest=False, sorted=True)


def predicted_positions(rate: float, length: int) -> int:
    """Number of positions to predict in a row of `length` tokens."""
    return max(1, round(rate * length))


class Masker:
    """Chooses positions of each row and corrupts them.

    The chosen positions come in random order. Special tokens may be chosen, as in the public code
    of Geiping and Goldstein 2022.

    Args:
        corruption: what replaces the chosen tokens, one of `CORRUPTIONS`.
        mask_id: id of [MASK].
        specials: ids that are never drawn as random tokens.
        device: where the rows will be, so that calls need not copy the keys there.
        unit: what is chosen: ``token``, ``word``, ``span`` or ``pmi``.
        begins: where words begin, or groups of words; None if every token begins one.
    """

    def __init__(
        self,
        seed: int,
        corruption: str,
        mask_id: int,
        specials: Sequence[int],
        vocab_size: int,
        device: torch.device | None = None,
        unit: str = "token",
        begins: Beginnings | None = None,
    ) -> None:
        self._which, self._what, self._where, self._cuts = (
            torch.tensor(key(seed, purpose), device=device)
            for purpose in ("mask", "random-token", "in-unit", "span")
        )
        self._unit = unit
        self._begins = begins
        self._corrupt = CORRUPTIONS[corruption]
        self.mask_id = mask_id
        self._specials = sorted(specials)
        self._vocab_size = vocab_size

    @classmethod
    def of(
        cls,
        config: RunConfig,
        specials: Specials,
        vocab_size: int,
        device: torch.device,
        begins: Beginnings | None,
    ) -> Masker:
        """The masks of a run."""
        unit, corruption = config.masking.unit, config.masking.corruption
        drawn = (specials.mask, specials.ids, vocab_size, device, unit, begins)
        return cls(config.seed, corruption, *drawn)

    def __call__(self, rows: Tensor, numbers: Tensor, count: int) -> MaskedRows:
        """Mask `count` positions of each row.

        Args:
            rows: [B, S] int64 token ids.
            numbers: [B] int64 numbers of the rows in the stream.
        """
        length = rows.shape[1]
        if self._unit == "token":
            positions = shuffled(keyed_bits(self._which, numbers, length), count)
        else:
            positions = shuffled(self._bits_of_units(rows, numbers), count)
            again = shuffled(keyed_bits(self._where, numbers, count), count)
            positions = positions.gather(1, again)
        labels = rows.gather(1, positions)
        replaced = self._corrupt(self, labels, numbers)
        return MaskedRows(rows.scatter(1, positions, replaced), positions, labels)

    def _bits_of_units(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Random bits, [B, S], equal in all tokens of a word, or of a span of words.

        Spans follow each other without gaps, and their lengths are geometrically distributed.
        """
        length = rows.shape[1]
        begins = torch.ones_like(rows, dtype=torch.bool)
        if self._begins is not None:
            begins = self._begins[rows]
        if self._unit == "span":
            begins = begins & (keyed_bits(self._cuts, numbers, length) < 2**32 / SPAN)
        units = begins.cumsum(1)  # a row may begin within a word
        return keyed_bits(self._which, numbers, length + 1).gather(1, units)

    def random_tokens(self, numbers: Tensor, count: int) -> Tensor:
        """Ordinary tokens, [B, count], drawn by the number of the row."""
        drawn = keyed_bits(self._what, numbers, count) % (self._vocab_size - len(self._specials))
        for special in self._specials:  # skip them, in ascending order
            drawn = drawn + (drawn >= special)
        return drawn


def _mostly_masked(masker: Masker, labels: Tensor, numbers: Tensor) -> Tensor:
    """80 % become [MASK], 10 % a random ordinary token, and the rest stay (Devlin et al. 2019)."""
    count = labels.shape[1]
    masked, random = round(0.8 * count), round(0.9 * count)
    parts = (
        torch.full_like(labels[:, :masked], masker.mask_id),
        masker.random_tokens(numbers, count)[:, masked:random],
        labels[:, random:],
    )
    return torch.cat(parts, dim=1)


def _all_masked(masker: Masker, labels: Tensor, numbers: Tensor) -> Tensor:
    """All become [MASK]."""
    return torch.full_like(labels, masker.mask_id)


CORRUPTIONS: dict[str, Callable[[Masker, Tensor, Tensor], Tensor]] = {
    "80-10-10": _mostly_masked,
    "all-mask": _all_masked,
}
"""The values of `masking.corruption`: functions from the ids at the chosen positions, [B, N], and
the numbers of their rows, [B], to the ids that replace them."""
