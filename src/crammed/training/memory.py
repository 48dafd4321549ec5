"""What the device's memory holds: the model at all, and how many rows at once."""

from __future__ import annotations

from collections.abc import Callable

from crammed.config import ModelConfig
from crammed.device import is_out_of_memory, memory_of
from crammed.errors import InputError
from crammed.model.count import parameters
from crammed.quantity import quantity

BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in float32."""

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


def refuse_too_large(model: ModelConfig, vocab_size: int, kind: str) -> None:
    """Refuse a model that cannot be trained here before any of it is allocated.

    Args:
        kind: type of the device, such as ``cuda``.

    Raises:
        InputError: weights, gradients and moments need more than all of the device's memory.
    """
    size, most = parameters(model, vocab_size), memory_of(kind)
    if most is not None and BYTES_PER_PARAMETER * size > most:
        raise InputError(
            f"a model of {quantity(size)} parameters needs "
            f"{BYTES_PER_PARAMETER * size / 2**30:,.0f} GiB for weights, gradients and moments, "
            f"and this machine's {kind} has {most / 2**30:,.0f} GiB: lower model.layers, "
            "model.width or tokenizer.vocab_size"
        )
