"""Records of a split as rows: texts, labels, and what scoring needs besides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one split.

    Attributes:
        texts: one tuple of one or two texts a sequence; for kind choice C sequences a row, one
            after the other; for kind tokens the words of a row.
        labels: [R] class numbers or values as float32; [R, L] 0/1 float32 for multi-label; for
            tokens the class numbers of all words, flat, [sum of words], -1 where there is no label.
            A test split has NaN.
        choices: C, sequences a row; 1 for the other kinds.
        groups: [R] keys that join rows for group metrics, or empty.
        index: [R] what the data calls each row (``idx``), for submissions; its number if unnamed.
    """

    texts: list[Texts]
    labels: NDArray[np.float32]
    choices: int = 1
    groups: list[str] = field(default_factory=list)
    index: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts) // self.choices


@dataclass(frozen=True)
class TaskData:
    """Everything of a task that was read.

    Attributes:
        labels: names of the classes in the order of their numbers; empty for regression.
        scored: rows of each number; a split that the data lacks is not there.
        test: unlabelled rows of each leaderboard file that the data has.
        rows: number of rows of each split that was read, by name of the split.
        official: True if the training split and every scored one have their official sizes, False
            if one has not, None where those are unknown.
        sha256: digest of the training and scored splits' files.
        test_sha256: digest of each leaderboard file's unlabelled split.
    """

    train: Rows
    scored: dict[str, Rows]
    test: dict[str, Rows]
    labels: tuple[str, ...]
    rows: dict[str, int]
    official: bool | None
    sha256: str
    test_sha256: dict[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """Logits of a sequence: one a class, or 1 for regression and choice."""
        return max(1, len(self.labels)) if self.train.choices == 1 else 1
