"""Words that are too long for a trainer, such as DNA and paragraphs without any space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

_MUCH = 0.01
"""Share of the characters that such words must hold, so that other vocabularies stay the same."""
_PIECE = 1000
"""Characters; the time to train on a word may grow with the square of its length."""


def cut_long_words(counts: Counter[str], is_too_long: Callable[[str], bool]) -> None:
    """Replace words that a trainer would leave out by their pieces, if they are much of the text.

    Args:
        counts: how often each word occurs.
    """
    long = [word for word in counts if is_too_long(word)]
    held = sum(len(word) * counts[word] for word in long)
    if held < _MUCH * sum(len(word) * count for word, count in counts.items()):
        return
    for word in long:
        count = counts.pop(word)
        for start in range(0, len(word), _PIECE):
            counts[word[start : start + _PIECE]] += count
