"""Statistics of a corpus, counted per shard and added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.data.corpus import Tokens

LENGTH_BINS = 32
"""Bin b of a histogram of lengths counts lengths from 2**b to 2**(b + 1) - 1."""
BINS_A_TOKEN = 20
"""Bin b of tokens per character begins at b / 20; the last bin has no end."""

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Statistics:
    """Counts over the documents of one or more shards; a document packed twice counts twice.

    Attributes:
        documents: number of documents of each source.
        characters: number of characters of each source.
        document_tokens: [LENGTH_BINS] documents by length in tokens.
        document_characters: [LENGTH_BINS] documents by length in characters.
        tokens_per_character: [BINS_A_TOKEN + 1] documents by tokens per character.
        token_counts: [V] occurrences of each token.
    """

    documents: Counter[str]
    characters: Counter[str]
    document_tokens: Counts
    document_characters: Counts
    tokens_per_character: Counts
    token_counts: Counts

    @classmethod
    def of(
        cls, source: str, characters: Counts, tokens: Counts, stream: Tokens, vocab_size: int
    ) -> Statistics:
        """Count one source's documents.

        Args:
            characters: [D] characters of each document.
            tokens: [D] tokens of each document.
            stream: [T] the documents' tokens, including the special tokens around them.
        """
        # Integers, so that rounding moves no document into another bin.
        density = BINS_A_TOKEN * tokens // np.maximum(characters, 1)
        return cls(
            documents=Counter({source: len(characters)}),
            characters=Counter({source: int(characters.sum())}),
            document_tokens=_by_length(tokens),
            document_characters=_by_length(characters),
            tokens_per_character=_histogram(density, BINS_A_TOKEN + 1),
            token_counts=np.bincount(stream, minlength=vocab_size),
        )

    @staticmethod
    def merge(parts: Iterable[Statistics]) -> Statistics:
        """Add up one or more parts; the result does not depend on how they are grouped."""

        def added(one: Statistics, other: Statistics) -> Statistics:
            ours, theirs = vars(one), vars(other)
            return Statistics(**{name: ours[name] + theirs[name] for name in ours})

        return reduce(added, parts)

    def to_json(self) -> dict[str, Any]:
        """All counts as JSON values, for `from_json`."""
        return {
            name: dict(value) if isinstance(value, Counter) else value.tolist()
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Statistics:
        read: dict[str, Any] = {
            name: Counter(value) if isinstance(value, dict) else np.array(value, np.int64)
            for name, value in values.items()
        }
        return cls(**read)

    def summary(self, unknown: int) -> dict[str, Any]:
        """What the manifest holds; histograms are lists of counts.

        Args:
            unknown: id of [UNK].
        """
        return {
            "document_tokens": self.document_tokens.tolist(),
            "document_characters": self.document_characters.tolist(),
            "tokens_per_character": self.tokens_per_character.tolist(),
            **unknown_and_unused(self.token_counts, unknown),
        }


def unknown_and_unused(counts: Counts, unknown: int) -> dict[str, Any]:
    """The share of [UNK] among all tokens, and how many tokens of the vocabulary never occur."""
    return {
        "unknown_share": float(counts[unknown] / max(1, counts.sum())),
        "unused_tokens": int(np.count_nonzero(counts == 0)),
    }


def unigram_cross_entropy(counts: Counts, rows: NDArray[np.int64]) -> float:
    """Cross-entropy of held-out rows under the training text's token frequencies.

    Args:
        counts: [V] occurrences of each token in the training text; add-one smoothed.
        rows: [R, S] token ids.

    Returns:
        Nats per token.
    """
    return float(-log_frequencies(counts)[rows].mean())


def log_frequencies(counts: Counts) -> NDArray[np.float64]:
    """Natural logarithms of token frequencies, [V], from counts, [V], with add-one smoothing."""
    shares: NDArray[np.float64] = np.log((counts + 1) / (counts.sum() + len(counts)))
    return shares


def labelled_lengths(histogram: Sequence[int]) -> list[tuple[str, int]]:
    """Labels and counts of a histogram of lengths, without the empty bins at both ends."""
    filled = np.flatnonzero(histogram)
    if not len(filled):
        return []
    return [
        (f"{2**b:,} to {2 ** (b + 1) - 1:,}" if b else "1", histogram[b])
        for b in range(filled[0], filled[-1] + 1)
    ]


def share_beyond(histogram: Sequence[int], length: int) -> float:
    """Approximate share of all tokens that lie in documents of at least `length` tokens.

    The logarithms of the lengths in a bin are assumed to be uniformly distributed.

    Args:
        histogram: [LENGTH_BINS] documents by length in tokens.
    """
    counts = np.array(histogram, np.float64)
    begins = 2.0 ** np.arange(len(counts))
    above = np.clip(length / begins, 1.0, 2.0)  # where each bin reaches `length`
    return float((counts * begins * (2.0 - above)).sum() / max(1.0, (counts * begins).sum()))


def _by_length(lengths: Counts) -> Counts:
    """Histogram of integers by their highest set bit; 0 counts as 1."""
    _, exponents = np.frexp(np.maximum(lengths, 1).astype(np.float64))
    return _histogram(exponents.astype(np.int64) - 1, LENGTH_BINS)


def _histogram(bins: Counts, count: int) -> Counts:
    return np.bincount(np.minimum(bins, count - 1), minlength=count)
