"""The steps that clean one document, in order.

unicode     normalises spellings of the same text; changes it, never drops it
empty       drops what has no text
length      drops what has too few or too many characters
gopher      the quality and repetition rules of Gopher (Rae et al. 2021, section A.1 and table A1)
c4          the rules of C4 (Raffel et al. 2020, section 2.2); also changes the text
downstream  drops what contains a sentence of an evaluation task

gopher and c4 count words between spaces and rely on English stop words and punctuation. Languages
without spaces, such as Chinese, are out of their scope: they would drop all such text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import CleanConfig
from crammed.data.preparing.cleaning.downstream import Downstream, fingerprint
from crammed.data.preparing.cleaning.unicode import normalise


@dataclass(frozen=True)
class Verdict:
    """The outcome of cleaning one document.

    Attributes:
        text: the document after the last step it passed.
        dropped_by: name of the step that dropped it; None if it was kept.
    """

    text: str
    dropped_by: str | None


def settings_of(config: CleanConfig) -> dict[str, Any]:
    """The settings, with the folder of downstream tasks replaced by a hash of its content."""
    settings = config.model_dump(mode="json")
    if config.downstream is not None:
        settings["downstream"] = fingerprint(Path(config.downstream))
    return settings


class Cleaner:
    """Applies the active steps to a document; the outcome depends only on its text.

    Attributes:
        steps: names of the active steps, in order.
    """

    def __init__(self, config: CleanConfig) -> None:
        """Choose the steps, and read the tasks if "downstream" is one of them.

        Raises:
            InputError: `config.downstream` is not a folder of tasks, or cannot be read.
        """
        self._config = config
        self._apply: dict[str, Callable[[str], str | None]] = {}
        """Steps by name; each returns the document for the next step, or None to drop it."""
        if config.unicode:
            self._apply["unicode"] = normalise
        self._apply["empty"] = _unless_empty
        if config.min_characters > 1 or config.max_characters is not None:
            self._apply["length"] = self._unless_out_of_length
        if config.gopher:
            self._apply["gopher"] = _by_gopher_rules
        if config.c4:
            self._apply["c4"] = _by_c4_rules
        if config.downstream is not None:
            self._downstream = Downstream(Path(config.downstream))
            self._apply["downstream"] = self._unless_downstream
        self.steps = tuple(self._apply)

    def __call__(self, text: str) -> Verdict:
        for name, step in self._apply.items():
            changed = step(text)
            if changed is None:
                return Verdict(text, name)
            text = changed
        return Verdict(text, None)

    def _unless_out_of_length(self, text: str) -> str | None:
        longest = self._config.max_characters
        fits = self._config.min_characters <= len(text) and (
            longest is None or len(text) <= longest
        )
        return text if fits else None

    def _unless_downstream(self, text: str) -> str | None:
        return None if self._downstream.sentence_in(text) is not None else text


def _unless_empty(text: str) -> str | None:
    return text if text.strip() else None


# ---- gopher

_STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
_BULLETS = ("•", "-", "*")
_ELLIPSES = ("...", "…")
_TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}
"""Largest share of the characters in the most frequent n-gram."""
_REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Largest share of the characters in n-grams that have occurred before."""


def _by_gopher_rules(text: str) -> str | None:
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


# ---- c4

_TERMINAL = (".", "!", "?", '"', "\u201d")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_SENTENCE_END = re.compile("[.!?][\"')\u2019\u201d]*(?=\\s|$)")
_UNWANTED_LINE = re.compile(
    "javascript|terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
)
_FEWEST_WORDS = 5
_FEWEST_SENTENCES = 3


def _by_c4_rules(text: str) -> str | None:
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
