"""Keeps the tokens of a split on a device, and gathers batches from them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crammed.evaluation.backbones.tokens import Tokenized

POOL = 32
"""How many batches' worth of rows are sorted by length at a time."""


@dataclass(frozen=True)
class Batch:
    """B rows of C sequences each, padded to S tokens.

    Attributes:
        ids: [B * C, S] int64.
        mask: [B * C, S] bool, False at padding.
        types: [B * C, S] int64, or None.
        labels: [B]; [B, L] for multi-label; [B, S] for kind tokens, -100 where there is none.
    """

    ids: Tensor
    mask: Tensor
    types: Tensor | None
    labels: Tensor


class EncodedSplit:
    """The rows of a split as tokens on a device, from which batches are gathered there.

    Args:
        tokens: C sequences for each row.
        labels: those of `Rows`; for kind tokens one for each word; None only predicts.
        choices: C.
        pad: id of the padding token.
        word_counts: [N] the number of words in each sequence, for kind tokens; None for others.

    Attributes:
        cut: how many sequences were truncated.
    """

    def __init__(
        self,
        tokens: Tokenized,
        labels: NDArray[np.float32] | None,
        choices: int,
        pad: int,
        device: torch.device,
        word_counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.choices = choices
        self.cut = tokens.cut
        self.lengths: NDArray[np.int64] = np.diff(tokens.offsets)
        self._pad = pad
        self._ids = torch.from_numpy(tokens.ids).to(device, torch.int64)
        self._types = None
        if tokens.types is not None:
            self._types = torch.from_numpy(tokens.types).to(device, torch.int64)
        self._starts = torch.from_numpy(tokens.offsets[:-1]).to(device)
        self._lengths = torch.from_numpy(self.lengths).to(device)
        self.labels_tokens = word_counts is not None
        count = len(self) if word_counts is None else int(word_counts.sum())
        given = np.zeros(count, np.float32) if labels is None else labels
        values: NDArray[Any] = given
        if word_counts is not None:
            self._words, self._places = count, _word_places(tokens, word_counts)
            token, word = self._places
            values = np.full(len(tokens.ids), -100, np.int64)
            values[token] = given[word]
            values[values < 0] = -100
        self._labels = torch.from_numpy(values).to(device)

    def __len__(self) -> int:
        return len(self.lengths) // self.choices

    def widths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The length of the longest sequence in each set of rows: [..., B] -> [...]."""
        longest = self.lengths.reshape(-1, self.choices).max(axis=1)
        return np.asarray(longest[rows].max(axis=-1))

    def token_places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of the tokens of `rows` in the split's flat tokens, one row after another."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.concatenate([np.arange(starts[r], starts[r] + self.lengths[r]) for r in rows])

    def batch(self, rows: Tensor, width: int) -> Batch:
        """The batch of `rows` [B] (on the device), padded to `width`, without synchronizing."""
        which = rows[:, None] * self.choices + torch.arange(self.choices, device=rows.device)
        which = which.flatten()
        place = torch.arange(width, device=rows.device)
        mask = place < self._lengths[which, None]
        at = torch.where(mask, self._starts[which, None] + place, 0)
        ids = torch.where(mask, self._ids[at], self._pad)
        types = torch.where(mask, self._types[at], 0) if self._types is not None else None
        if self.labels_tokens:
            labels = torch.where(mask, self._labels[at], -100)
        else:
            labels = self._labels[rows]
        return Batch(ids, mask, types, labels)

    def of_words(self, outputs: NDArray[np.float32], majority: int) -> NDArray[np.float32]:
        """For kind tokens, the outputs of each word's first token, [W, L]; for others, all.

        Args:
            outputs: as from `predict`.
            majority: the class predicted for words that were truncated.
        """
        if not self.labels_tokens:
            return outputs
        token, word = self._places
        words = np.zeros((self._words, outputs.shape[1]), np.float32)
        words[:, majority] = 1.0
        words[word] = outputs[token]
        return words


def _word_places(
    tokens: Tokenized, word_counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which tokens begin a word, and the indices of these words among all words of the split."""
    assert tokens.words is not None, "these texts were not given as words"
    first = np.cumsum(word_counts) - word_counts
    token = np.flatnonzero(tokens.words >= 0)
    sequence = np.repeat(np.arange(len(word_counts)), np.diff(tokens.offsets))
    return token, first[sequence[token]] + tokens.words[token]


def epoch_batches(
    rows: EncodedSplit, size: int, draw: np.random.Generator, shared: np.random.Generator
) -> NDArray[np.int64]:
    """One epoch of random batches of rows of similar length, [steps, size].

    Rows are shuffled, those beyond the last full batch are dropped, the rest are sorted by length
    within pools of 32 batches, and the batches are shuffled. This needs little padding, yet every
    epoch has different batches.

    Args:
        draw: decides which rows share a batch.
        shared: decides the order of the batches. Seeds that train side by side share it, so that
            their short batches fall on the same steps.
    """
    order = draw.permutation(len(rows))[: len(rows) // size * size]
    lengths = rows.widths(order[:, None])
    pools = np.arange(0, len(order), POOL * size)[1:]
    sorted_pools = [
        pool[np.argsort(width, kind="stable")]
        for pool, width in zip(np.split(order, pools), np.split(lengths, pools), strict=True)
    ]
    return shared.permutation(np.concatenate(sorted_pools).reshape(-1, size))
