"""Spans of bytes to cut out of documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
"""A range of bytes, [start, end)."""


def without_spans(text: str, spans: Sequence[Span]) -> str:
    """The text without these spans of its UTF-8 bytes, which are sorted and disjoint."""
    if not spans:
        return text
    whole, kept, place = text.encode(), [], 0
    for start, end in spans:
        kept.append(whole[place:start])
        place = end
    return b"".join([*kept, whole[place:]]).decode()


def both_cut(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Spans that cut what two cuts in turn do.

    Args:
        second: spans of what `first` leaves.
    """
    left, cut = deque(first), list[Span]()
    shift = 0
    for start, end in second:
        while left and left[0][0] <= start + shift:
            cut.append(left.popleft())
            shift += cut[-1][1] - cut[-1][0]
        start += shift
        while left and left[0][0] < end + shift:
            cut.append((start, left[0][0]))
            start = left[0][0]
            cut.append(left.popleft())
            shift += cut[-1][1] - cut[-1][0]
            start = cut[-1][1]
        cut.append((start, end + shift))
    return [*cut, *left]


@dataclass(frozen=True, eq=False)
class Cuts:
    """What to cut out of documents, in 16 bytes for each span.

    Attributes:
        numbers: [m] the document of each span, ascending.
        spans: [m, 2] its range of bytes; those of a document are sorted and disjoint.
    """

    numbers: NDArray[np.int64]
    spans: NDArray[np.int32]

    @classmethod
    def from_spans(cls, spans: Iterable[tuple[int, Sequence[Span]]]) -> Cuts:
        """Those of pairs of a document, ascending, and its spans."""
        pairs = [(number, span) for number, own in spans for span in own]
        numbers = np.array([number for number, _ in pairs], np.int64)
        return cls(numbers, np.array([span for _, span in pairs], np.int32).reshape(-1, 2))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def documents(self) -> NDArray[np.int64]:
        """The numbers of the documents that have spans, ascending."""
        return np.unique(self.numbers)

    def get(self, number: int) -> list[Span]:
        """The spans of a document."""
        if not len(self):  # as nearly always; this is called for every document
            return []
        low, high = np.searchsorted(self.numbers, (number, number + 1))
        return [(start, end) for start, end in self.spans[low:high].tolist()]

    def between(self, start: int, end: int) -> Cuts:
        """Those of documents `start` to `end` - 1, numbered from 0."""
        low, high = np.searchsorted(self.numbers, (start, end))
        return Cuts(self.numbers[low:high] - start, self.spans[low:high])

    def of(self, numbers: NDArray[np.int64]) -> Cuts:
        """Those of documents with these numbers."""
        own = np.isin(self.numbers, numbers)
        return Cuts(self.numbers[own], self.spans[own])

    def then(self, second: Cuts) -> Cuts:
        """These, and then `second` in what they leave."""
        if not len(self):
            return second
        numbers = np.union1d(self.numbers, second.numbers).tolist()
        return Cuts.from_spans((n, both_cut(self.get(n), second.get(n))) for n in numbers)


NO_CUTS = Cuts(np.empty(0, np.int64), np.empty((0, 2), np.int32))
