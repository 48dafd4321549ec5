"""Chooses the documents to hold out: at most 5 % of the text, whole documents where possible."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.errors import InputError
from crammed.quantity import counted

CHARACTERS_A_TOKEN = 5.0
"""More than any English tokenizer packs into a token, so that the held-out part is large enough."""
LARGEST_HELDOUT = 0.05
"""Largest share of the characters to hold out, unless `data.heldout_fraction` asks for more."""
SEAM = 2000
"""Characters dropped between the two parts of a document that is split."""

_BREAKS = tuple(map(re.compile, (r"\n[ \t]*\n\s*", r"\n", r"[.!?]\s+", r"\s")))
"""Where to split a document, best first: paragraphs, lines, sentences, words."""


@dataclass(frozen=True)
class HeldoutChoice:
    """Which documents are held out.

    Attributes:
        documents: [n] whether a document is held out.
        part: largest number of characters held out, from the end of each; None for all.
        complete: whether no other documents need be looked at.
    """

    documents: NDArray[np.bool_]
    part: int | None = None
    complete: bool = True


def choose_heldout(
    ranks: NDArray[np.float64],
    characters: NDArray[np.int64],
    data: DataConfig,
    *,
    by_line: bool = False,
    dropped: int = 0,
    total: int | None = None,
) -> HeldoutChoice:
    """Choose the documents to hold out.

    Documents are taken in the order of their ranks until they hold `data.heldout_fraction` of the
    characters and fill `data.heldout_rows`, but never more than 5 % (or `data.heldout_fraction`,
    if that is more): a document that would exceed this limit is skipped. If every document exceeds
    it on its own, the end of one that is long enough is held out.

    Args:
        ranks: [n] in [0, 1); documents with the same text have the same rank and stay together.
        characters: [n] characters of each document.
        by_line: whether there are text files whose lines could be read as documents, but are not.
        dropped: number of documents dropped earlier because they repeat these.
        total: characters of all documents, if these are only those with the lowest ranks.

    Raises:
        InputError: there is no document, or too little text to hold any of it out.
    """
    if not len(ranks):
        if total is not None:
            return HeldoutChoice(np.zeros(0, np.bool_), complete=False)
        raise InputError("the data holds no text: no document is left after cleaning")
    are_all, total = total is None, int(characters.sum()) if total is None else total
    largest = max(LARGEST_HELDOUT, data.heldout_fraction)
    target = heldout_target(total, data)

    _, firsts, text, copies = np.unique(
        ranks, return_index=True, return_inverse=True, return_counts=True
    )
    sizes = characters[firsts] * copies
    taken = _first_that_fit(sizes, target, largest * total)
    if not are_all and sizes[taken].sum() < target:
        return HeldoutChoice(taken[text], complete=False)
    if taken.any():
        return HeldoutChoice(taken[text])
    left = total - SEAM * copies
    parts = (np.minimum(target, largest * left) / copies).astype(np.int64)
    long_enough = np.flatnonzero((parts > 0) & (characters[firsts] > parts + SEAM))
    if not len(long_enough):
        hint = "; if each line of a .txt file is a document, set data.documents=line"
        few = "too few to train on some and hold out others"
        if dropped + len(ranks) >= 2 * len(firsts):  # at least half of them are copies
            raise InputError(
                f"the text repeats itself: only {len(firsts):,} of {dropped + len(ranks):,} "
                f"documents are distinct, with {int(characters[firsts].sum()):,} characters in "
                f"all, {few}: add other text"
            )
        raise InputError(
            f"too little text: {counted(len(ranks), 'document')} of {total:,} characters in all, "
            f"{few}: add text{hint if by_line else ''}"
        )
    return HeldoutChoice(text == long_enough[0], int(parts[long_enough[0]]))


def heldout_target(total: int, data: DataConfig) -> float:
    """Characters to hold out of `total`."""
    for_rows = data.heldout_rows * data.row_length * CHARACTERS_A_TOKEN
    return max(data.heldout_fraction * total, min(for_rows, LARGEST_HELDOUT * total))


def _first_that_fit(sizes: NDArray[np.int64], target: float, most: float) -> NDArray[np.bool_]:
    """Take sizes in turn until they reach `target`, skipping those that would exceed `most`."""
    taken = np.zeros(len(sizes), np.bool_)
    held, smallest = 0, int(sizes.min())
    for place, size in enumerate(map(int, sizes)):
        if held >= target or held + smallest > most:
            break
        if held + size <= most:
            taken[place] = True
            held += size
    return taken


def heldout_beginning(text: str, part: int) -> int:
    """Where the held-out end of a document begins: no more than `part` characters from its end.

    It begins at a paragraph if one begins in the first half of these characters, otherwise at a
    line, a sentence or a word, and failing that, exactly `part` characters from the end.
    """
    earliest, latest = len(text) - part, len(text) - part // 2
    for pattern in _BREAKS:
        for found in pattern.finditer(text, earliest, latest):
            return found.end()
    return earliest
