"""The quality and repetition rules of Gopher (Rae et al. 2021, section A.1 and table A1).

They count words between spaces, and rely on English stop words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

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
    """Section A.1, "Quality Filtering"; empty lines do not count."""
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
    if sum(any(map(str.isalpha, word)) for word in words) / len(words) < 0.8:
        return False
    return len(_STOP_WORDS.intersection(map(str.lower, words))) >= 2


def _repeats_itself(text: str, words: Sequence[str]) -> bool:
    """Section A.1, "Repetition Removal": whether any share exceeds its limit in table A1."""
    for pieces in (text.split("\n"), re.split(r"\n{2,}", text)):
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
    numbers: dict[str, int] = {}
    fresh = count()
    ids = np.fromiter((numbers.setdefault(w, next(fresh)) for w in words), np.int64, len(words))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    grams = ids
    for n in range(2, 11):
        if len(grams) < 2:
            return False
        # An n-gram's number combines those of its (n-1)-gram and its last word.
        grams = grams[:-1] * len(words) + ids[n - 1 :]
        _, first, grams, occurrences = np.unique(
            grams, return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) == len(grams):
            return False  # no n-gram occurs twice, so neither does a longer one
        if n in _TOP_NGRAM:
            most = occurrences.max()
            characters = int((ends[first + n] - ends[first])[occurrences == most].max()) * int(most)
            if characters / ends[-1] > _TOP_NGRAM[n]:
                return True
        if n in _REPEATED_NGRAMS:
            again = np.ones(len(grams), np.bool_)
            again[first] = False
            if lengths[_covered(again, n)].sum() / ends[-1] > _REPEATED_NGRAMS[n]:
                return True
    return False


def _covered(starts: NDArray[np.bool_], n: int) -> NDArray[np.bool_]:
    """Which words lie in an n-gram that begins at one of `starts`, [len(starts) + n - 1]."""
    return np.convolve(starts, np.ones(n, np.int64)) > 0
