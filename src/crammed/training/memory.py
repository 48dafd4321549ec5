"""How many rows go through the device at once: as many as its memory is expected to hold."""

from __future__ import annotations

from collections.abc import Callable

from crammed.device import is_out_of_memory

MOST_TOKENS = 65_536
"""Tokens of a microbatch at most; a GPU is no faster with more."""
LEAST_TOKENS = 4_096
"""With fewer tokens a GPU idles, so layers compute their activations twice instead."""
SHARE = 0.85
"""Share of the free memory that is planned with; the rest is for what measuring did not see."""
_PROBES = ((8, 16), (1, 2))
"""Numbers of rows that are tried; the second pair if the first is too much."""


def fitting_rows(peak: Callable[[int], int], free: int, row_length: int) -> int:
    """The largest power of two of rows that fits into memory, from two small microbatches.

    Args:
        peak: gives the bytes that so many rows take beyond what is held anyway; may raise an
            out-of-memory error.
        free: bytes that are free.
    """
    most = max(1, MOST_TOKENS // row_length)
    for small, large in _PROBES:
        try:
            few, more = peak(small), peak(large)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            continue
        a_row = max(1, (more - few) // (large - small))
        fixed = max(0, few - a_row * small)
        rows = int((SHARE * free - fixed) // a_row)
        return 1 << (max(1, min(rows, most)).bit_length() - 1)
    return 1
