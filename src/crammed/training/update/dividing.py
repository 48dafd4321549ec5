"""How the rows of an update are divided: into microbatches, and each into shorter ones."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

MOST_PIECES = 8
"""Leftover rows are split into equal pieces unless a microbatch holds more than this many."""
MOST_RESTS = 2
"""Leftover rows are not split if a run has at most this many different numbers of them."""


def equal_sizes(rows: int, most: int, lanes: int) -> list[int]:
    """Sizes of up to `most` that differ by one row at most, as many for each lane."""
    parts = min(rows, lanes * math.ceil(rows / (lanes * most)))
    return [rows * (n + 1) // parts - rows * n // parts for n in range(parts)]


def few_sizes(rows: int, most: int, compiled_for: Collection[int] = ()) -> list[int]:
    """Whole microbatches of `most` rows, and what is left over.

    That forms one more. If a growing batch leaves many different numbers of rows, each of which
    would have to be compiled, they are split into pieces of one size, or into powers of two if
    those pieces would be too small.

    Args:
        compiled_for: all numbers of rows that updates may have, if each size is to be compiled.
    """
    whole, rest = divmod(rows, most)
    sizes = [most] * whole
    rests = {count % most for count in compiled_for}
    if len(rests) <= MOST_RESTS:
        return sizes + [rest] * (rest > 0)
    piece = math.gcd(*rests, most)
    if piece * MOST_PIECES >= most:
        return sizes + few_sizes(rest, piece)
    return sizes + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


def cut(rows: Tensor, numbers: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """Each row as so many shorter ones, with numbers of their own."""
    if pieces == 1:
        return rows, numbers
    within = torch.arange(pieces, device=numbers.device)
    return rows.reshape(pieces * len(rows), -1), (pieces * numbers[:, None] + within).flatten()


def moved(rows: Tensor, device: torch.device) -> Tensor:
    """Copy rows from the CPU to the device, without stalling a GPU."""
    if device.type == "cuda":  # a copy from unpinned memory would wait for the device
        return rows.pin_memory().to(device, non_blocking=True)
    return rows.to(device)
