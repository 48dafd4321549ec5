"""Finds and cuts exactly repeated passages with a suffix array (Lee et al. 2022, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.data.preparing.cleaning.spans import Span
from crammed.errors import InputError
from crammed.extras import import_extra

MOST_BYTES = 2**31 - 1
"""The most that 32-bit positions can address."""

_Positions = NDArray[np.int64]


def repeated_spans(texts: Sequence[bytes], shortest: int) -> list[list[Span]]:
    """Find passages of UTF-8 texts that have occurred before, in an earlier text or in their own.

    A passage has at least `shortest` bytes and lies within one text. Its first occurrence is kept;
    of what repeats without a break, such as a line of dashes, the first `shortest` bytes are kept.
    Takes about 13 bytes of memory for each byte of text, and 45 if all of it repeats.

    Returns:
        For each text its spans of bytes, sorted and disjoint, with ends on character boundaries.

    Raises:
        InputError: there are more than `MOST_BYTES` bytes, or the library is not installed.
    """
    divsufsort, kasai = suffix_sorting_library()
    total = sum(map(len, texts))
    check_size(total)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    if total < 2 * shortest:
        return [[] for _ in texts]
    joined = b"".join(texts)
    suffixes = divsufsort(joined)
    starts = _repeated_starts(suffixes, kasai(joined, suffixes), ends, shortest)
    del suffixes
    return _by_text(_merged(starts, ends, shortest), joined, ends)


def check_size(least: int) -> None:
    """Check that a text of at least so many bytes is not too long.

    Raises:
        InputError: it has more than `MOST_BYTES`.
    """
    if least > MOST_BYTES:
        raise InputError(
            f"the text has {least} bytes or more, and data.clean.substring takes at most "
            f"{MOST_BYTES}: use data.clean.near instead, or fewer files"
        )


def suffix_sorting_library() -> tuple[Any, Any]:
    """Suffix sorting and longest common prefixes; if missing, an `InputError` names the extra."""
    library = import_extra("pydivsufsort", "dedup", "data.clean.substring")
    return library.divsufsort, library.kasai


def _repeated_starts(
    suffixes: NDArray[np.int32], common: NDArray[np.int32], ends: _Positions, shortest: int
) -> _Positions:
    """Sorted positions whose next `shortest` bytes have occurred before.

    Args:
        suffixes: where each suffix of the joined texts begins, in sorted order of the suffixes.
        common: length of the longest common prefix of each suffix and the next.
        ends: where each text ends.
    """
    as_next = common[:-1] >= shortest
    # Suffixes with the same first `shortest` bytes are neighbours: a run.
    in_run = np.append(as_next, False) | np.insert(as_next, 0, False)
    positions = suffixes[in_run].astype(np.int64)
    run_begins = np.flatnonzero(~np.insert(as_next, 0, False)[in_run])
    if not len(positions):
        return positions
    text = np.searchsorted(ends, positions, side="right")
    within = positions + shortest <= ends[text]  # not across the end of a text
    first = np.minimum.reduceat(np.where(within, positions, ends[-1]), run_begins)
    first = np.repeat(first, np.diff(run_begins, append=len(positions)))
    return np.sort(positions[within & (positions >= first + shortest)])


def _merged(starts: _Positions, ends: _Positions, shortest: int) -> _Positions:
    """Join windows that overlap or touch within a text into spans, [spans, 2]."""
    text = np.searchsorted(ends, starts, side="right")
    apart = (np.diff(starts) > shortest) | (np.diff(text) > 0)
    firsts = np.insert(apart, 0, True)[: len(starts)]
    lasts = np.append(apart, True)[: len(starts)]
    return np.stack((starts[firsts], starts[lasts] + shortest), axis=1)


def _by_text(spans: _Positions, joined: bytes, ends: _Positions) -> list[list[Span]]:
    """The spans of each text, relative to its beginning, shrunk to whole characters."""
    data = np.frombuffer(joined, np.uint8)
    start, end = spans[:, 0].copy(), spans[:, 1].copy()
    for _ in range(3):  # a character has up to three bytes after its first
        start += _continues(data, start)
        end -= _continues(data, end)
    text = np.searchsorted(ends, spans[:, 0], side="right")
    kept = start < end
    begins = np.insert(ends, 0, 0)
    offset = begins[text]
    pairs = list(zip((start - offset)[kept].tolist(), (end - offset)[kept].tolist(), strict=True))
    bounds = np.searchsorted(text[kept], np.arange(len(ends) + 1)).tolist()
    return [pairs[low:high] for low, high in pairwise(bounds)]


def _continues(data: NDArray[np.uint8], positions: _Positions) -> NDArray[np.bool_]:
    """Whether a byte continues a character begun by an earlier one; false past the end."""
    inside = positions < len(data)
    return np.asarray(inside & (data[np.where(inside, positions, 0)] & 0xC0 == 0x80))
