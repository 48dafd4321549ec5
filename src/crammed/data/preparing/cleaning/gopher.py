"""The quality and repetition rules of Gopher (Rae et al. 2021, section A.1 and table A1).

They are only for English: two of eight English stop words must occur, so that nearly all text in
other languages is dropped, and words are what stands between spaces.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count

import numpy as np

_STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
_BULLETS = ("•", "-", "*")
ELLIPSES = ("...", "…")
_TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}
"""Largest share of the characters in the most frequent n-gram."""
_REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Largest share of the characters in n-grams that have occurred before."""


def by_gopher_rules(text: str) -> str | None:
    """The document, or None to drop it."""
    words = text.split()
    return text if _has_quality(text, words) and not _repeats_itself(text, words) else None


def _has_quality(text: str, words: Sequence[str]) -> bool:
    """Section A.1, "Quality Filtering", whose stop words are English; empty lines do not count."""
    if not 50 <= len(words) <= 100_000:
        return False
    if not 3 <= sum(map(len, words)) / len(words) <= 10:
        return False
    ellipses = sum(text.count(ellipsis) for ellipsis in ELLIPSES)
    if max(text.count("#"), ellipses) / len(words) > 0.1:
        return False
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if sum(line.startswith(_BULLETS) for line in lines) / len(lines) >= 0.9:
        return False
    if sum(line.endswith(ELLIPSES) for line in lines) / len(lines) >= 0.3:
        return False
    least = sum(map(str.isalpha, words))  # which is nearly always enough, and quickly found
    if least / len(words) < 0.8 and _with_letters(words) / len(words) < 0.8:
        return False
    return any(len(_STOP_WORDS.intersection(some)) >= 2 for some in (words, map(str.lower, words)))


def _with_letters(words: Sequence[str]) -> int:
    return sum(any(map(str.isalpha, word)) for word in words)


def _repeats_itself(text: str, words: Sequence[str]) -> bool:
    """Section A.1, "Repetition Removal": whether any share exceeds its limit in table A1."""
    for pieces in (text.split("\n"), re.split(r"\n\n+", text)):
        if _has_repeated_pieces([piece for piece in pieces if piece.strip()]):
            return True
    return _has_repeated_ngrams(words)


def _has_repeated_pieces(pieces: Sequence[str]) -> bool:
    """Whether too many lines (or paragraphs), or too many of their characters, are repeats."""
    occurrences = Counter(pieces)
    repeated = len(pieces) - len(occurrences)
    characters = sum(map(len, pieces))
    repeated_characters = characters - sum(map(len, occurrences))
    return repeated / len(pieces) > 0.30 or repeated_characters / characters > 0.20


def _has_repeated_ngrams(words: Sequence[str]) -> bool:
    """Whether repeated n-grams make up too large a share of the characters, spaces excluded.

    An n-gram that occurs once repeats nothing, and the first of several occurrences is not a
    repetition. Where repeated n-grams overlap, each word counts once.
    """
    numbers = defaultdict[str, int](count().__next__)
    ids = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    grams, places = ids, np.arange(len(ids))
    occurrences = np.bincount(ids)
    for n in range(2, 11):
        # An n-gram occurs twice only if its (n-1)-gram does, and begins where that begins.
        places, grams = places[occurrences[grams] > 1], grams[occurrences[grams] > 1]
        places, grams = places[places + n <= len(ids)], grams[places + n <= len(ids)]
        if not len(places):
            return False
        # Its number combines those of its (n-1)-gram and its last word.
        grams = grams * len(ids) + ids[places + n - 1]
        _, first, grams, occurrences = np.unique(
            grams, return_index=True, return_inverse=True, return_counts=True
        )
        most = int(occurrences.max())
        if n in _TOP_NGRAM and most > 1:
            begins = places[first[occurrences == most]]
            characters = int((ends[begins + n] - ends[begins]).max()) * most
            if characters / ends[-1] > _TOP_NGRAM[n]:
                return True
        if n in _REPEATED_NGRAMS:
            again = np.delete(places, first)
            covered = np.unique(again[:, None] + np.arange(n))
            if lengths[covered].sum() / ends[-1] > _REPEATED_NGRAMS[n]:
                return True
    return False
