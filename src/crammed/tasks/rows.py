"""The rows of a task after reading: texts, labels, and what else scoring needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Texts = tuple[str, ...]
"""The one or two texts of a sequence; for kind tokens, its words."""


@dataclass(frozen=True)
class Rows:
    """The rows of one split.

    Attributes:
        texts: [R * C] the texts of each sequence; the C sequences of a row are neighbours.
        labels: [R] class numbers or values as float32; for multi-label, 0/1 [R, L]; for tokens the
            class numbers of all words, flat, with -1 for words without a label. NaN in a test
            split.
        choices: C, sequences per row; 1 unless the kind is choice.
        groups: [R] keys that join rows for group metrics; empty if there are no groups.
        index: [R] each row's identifier in the data (``idx``), or else its number; for submissions.
        positive: number of the class whose F1 metrics such as f1 are.
        skipped: how many further rows of the split were left out because they have no text.
    """

    texts: list[Texts]
    labels: NDArray[np.float32]
    choices: int = 1
    groups: list[str] = field(default_factory=list)
    index: list[Any] = field(default_factory=list)
    positive: int = 1
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.texts) // self.choices

    def majority_class(self) -> int:
        """The most frequent label of words, by number."""
        return int(np.bincount(self.labels[self.labels >= 0].astype(np.int64)).argmax())

    def empty(self) -> int:
        """How many rows have nothing but white space in all of their texts."""
        return sum(
            all(not text or text.isspace() for texts in row for text in texts)
            for row in self._by_row()
        )

    def known_from(self, train: Rows) -> int:
        """How many rows have the texts of a training row."""
        known = {*train._by_row()}
        return sum(texts in known for texts in self._by_row())

    def _by_row(self) -> Iterator[tuple[Texts, ...]]:
        return zip(*[iter(self.texts)] * self.choices, strict=True)


@dataclass(frozen=True)
class TaskData:
    """All data of a task.

    Attributes:
        scored: rows for each score of the task; splits missing from the data are left out.
        test: unlabelled rows for each leaderboard file; splits missing from the data are left out.
        labels: names of the classes in the order of their numbers; empty for regression.
        sha256: digest of the files of the training and scored splits.
        test_sha256: digest of the unlabelled split for each leaderboard file.
        folds: how many parts the training rows, which are scored, are cross-validated in, if any.
    """

    train: Rows
    scored: dict[str, Rows]
    test: dict[str, Rows]
    labels: tuple[str, ...]
    sha256: str
    test_sha256: dict[str, str] = field(default_factory=dict)
    folds: int = 0

    @property
    def outputs(self) -> int:
        """Outputs per sequence: one for each class; 1 for regression and choice."""
        return max(1, len(self.labels)) if self.train.choices == 1 else 1
