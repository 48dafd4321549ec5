"""Exact repeated passages, by a suffix array (Lee et al. 2022, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError

MOST_BYTES = 2**31 - 1
"""What positions of 32 bits can number."""

_Positions = NDArray[np.int64]


def repeated_spans(texts: Sequence[bytes], shortest: int) -> list[list[tuple[int, int]]]:
    """Which passages of UTF-8 texts stood before, in an earlier text or earlier in their own.

    A passage is `shortest` bytes or more and lies within one text. The first one of several stays:
    what repeats itself without a break, such as a line of dashes, is cut only from where its first
    `shortest` bytes end. Takes about 13 bytes of memory a byte of text, and 45 where all repeats.

    Returns:
        For each text its spans [start, end) in bytes, in order and apart, which begin and end
        between characters.

    Raises:
        InputError: more than `MOST_BYTES` bytes of text, or the library is not installed.
    """
    divsufsort, kasai = suffix_sorting_library()
    total = sum(map(len, texts))
    if total > MOST_BYTES:
        raise InputError(
            f"{total} bytes of text are too many for data.clean.substring, which takes "
            f"{MOST_BYTES}: use data.clean.near instead, or fewer files"
        )
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    if total < 2 * shortest:
        return [[] for _ in texts]
    joined = b"".join(texts)
    suffixes = divsufsort(joined)
    starts = _repeated_starts(suffixes, kasai(joined, suffixes), ends, shortest)
    del suffixes
    return _by_text(_merged(starts, ends, shortest), joined, ends)


def suffix_sorting_library() -> tuple[Any, Any]:
    """Suffix array and LCP; an `InputError` names the extra where they are missing."""
    try:
        from pydivsufsort import divsufsort, kasai
    except ImportError as error:
        raise InputError(
            "data.clean.substring needs a library that is not installed: "
            "pip install 'crammed[dedup]'"
        ) from error
    return divsufsort, kasai


def _repeated_starts(
    suffixes: NDArray[np.int32], common: NDArray[np.int32], ends: _Positions, shortest: int
) -> _Positions:
    """Positions, sorted, whose next `shortest` bytes stood before.

    Args:
        suffixes: where each suffix of the joined texts begins, suffixes in sorted order.
        common: length of the longest common prefix of each with the one after it.
        ends: where each text ends.
    """
    as_next = common[:-1] >= shortest
    # Suffixes with the same first `shortest` bytes follow one another: a run.
    in_run = np.append(as_next, False) | np.insert(as_next, 0, False)
    positions = suffixes[in_run].astype(np.int64)
    run_begins = np.flatnonzero(~np.insert(as_next, 0, False)[in_run])
    if not len(positions):
        return positions
    text = np.searchsorted(ends, positions, side="right")
    within = positions + shortest <= ends[text]  # and not across the end of a text
    first = np.minimum.reduceat(np.where(within, positions, ends[-1]), run_begins)
    first = np.repeat(first, np.diff(run_begins, append=len(positions)))
    return np.sort(positions[within & (positions >= first + shortest)])


def _merged(starts: _Positions, ends: _Positions, shortest: int) -> _Positions:
    """Windows that overlap or touch within a text as one span each, [spans, 2]."""
    text = np.searchsorted(ends, starts, side="right")
    apart = (np.diff(starts) > shortest) | (np.diff(text) > 0)
    firsts = np.insert(apart, 0, True)[: len(starts)]
    lasts = np.append(apart, True)[: len(starts)]
    return np.stack((starts[firsts], starts[lasts] + shortest), axis=1)


def _by_text(spans: _Positions, joined: bytes, ends: _Positions) -> list[list[tuple[int, int]]]:
    """The spans by text, from its own beginning, without the characters they cut through."""
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
    """Whether a byte goes on with a character that an earlier one began; false behind the last."""
    inside = positions < len(data)
    return np.asarray(inside & (data[np.where(inside, positions, 0)] & 0xC0 == 0x80))
