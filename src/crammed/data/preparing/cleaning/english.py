"""Rules for English text, which drop nearly all text in some other languages.

Gopher's (Rae et al. 2021, section A.1 and table A1) demand two of eight English stop words. C4's
(Raffel et al. 2020, section 2.2) keep only lines that end in Latin punctuation. For both, words are
what stands between spaces.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count

import numpy as np

_ELLIPSES = ("...", "…")

# ---- Gopher

_STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
_BULLETS = ("•", "-", "*")
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
    ellipses = sum(text.count(ellipsis) for ellipsis in _ELLIPSES)
    if max(text.count("#"), ellipses) / len(words) > 0.1:
        return False
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if sum(line.startswith(_BULLETS) for line in lines) / len(lines) >= 0.9:
        return False
    if sum(line.endswith(_ELLIPSES) for line in lines) / len(lines) >= 0.3:
        return False
    least = sum(map(str.isalpha, words))  # which is nearly always enough, and quickly found
    if least / len(words) < 0.8:
        with_letters = sum(any(map(str.isalpha, word)) for word in words)
        if with_letters / len(words) < 0.8:
            return False
    return any(len(_STOP_WORDS.intersection(some)) >= 2 for some in (words, map(str.lower, words)))


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


# ---- C4

_TERMINAL = (".", "!", "?", '"', "\u201d")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_SENTENCE_END = re.compile("[.!?][\"')\u2019\u201d]*(?=\\s|$)")
_UNWANTED_LINE = re.compile(
    "javascript|terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
)
_FEWEST_WORDS = 5
_FEWEST_SENTENCES = 3


def by_c4_rules(text: str) -> str | None:
    """The good lines of a document, or None to drop it.

    The thresholds are those of the journal version and of the published code: 5 words in a line
    and 3 sentences in a document (an earlier version has 3 and 5). The list of bad words, the
    language detector and the removal of repeated spans of three sentences are left out.
    """
    if "{" in text or "}" in text or "lorem ipsum" in text.lower():
        return None
    lines = [_CITATION.sub("", line).strip() for line in text.split("\n")]
    kept = "\n".join([line for line in lines if _is_good_line(line)])
    return kept if len(_SENTENCE_END.findall(kept)) >= _FEWEST_SENTENCES else None


def _is_good_line(line: str) -> bool:
    return (
        line.endswith(_TERMINAL)
        and not line.endswith(_ELLIPSES)
        and len(line.split()) >= _FEWEST_WORDS
        and not _UNWANTED_LINE.search(line.lower())
    )
