"""A task as its jobs see it: tokens and labels, in files that every worker reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crammed.config import Section
from crammed.config.base import PositiveFloat
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.finetuning.arrays import load_arrays, save_arrays
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task, TaskKind

SCALED = "labels outside -10 to 10"
"""What is fine-tuned on a `LabelScale`, and was not in earlier versions."""


class LabelScale(Section):
    """Mean and deviation of labels of kind regression, on which models are fine-tuned as 0 and 1.

    In each step an output moves by little more than the learning rate, and would never reach labels
    such as prices. Those from -10 to 10, such as STS-B's, are not scaled.
    """

    mean: float = 0.0
    deviation: PositiveFloat = 1.0

    @classmethod
    def of(cls, kind: TaskKind, labels: NDArray[np.float32]) -> LabelScale:
        """The scale of a task with these training labels."""
        if kind != "regression" or np.abs(labels).max() <= 10.0:
            return cls()
        exact = labels.astype(np.float64)
        return cls(mean=float(exact.mean()), deviation=float(exact.std()))

    def __bool__(self) -> bool:
        return self != LabelScale()

    def scaled(self, labels: NDArray[np.float32]) -> NDArray[np.float32]:
        """What is fine-tuned on in place of labels."""
        return (labels - self.mean) / self.deviation if self else labels

    def undone(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Outputs of a model on the scale of the labels."""
        return outputs * self.deviation + self.mean if self else outputs


@dataclass(frozen=True)
class TokenizedSplit:
    """The tokens and labels of one split, in a file; each row has `choices` sequences."""

    path: Path
    choices: int

    def write(
        self, tokens: Tokenized, labels: NDArray[np.float32], counts: NDArray[np.int64] | None
    ) -> None:
        """Write the file.

        Args:
            labels: those of `Rows`.
            counts: [N] the number of words in each sequence, for kind tokens; None for others.
        """
        arrays: dict[str, NDArray[Any] | None] = {
            "ids": tokens.ids,
            "offsets": tokens.offsets,
            "labels": labels,
            "types": tokens.types,
            "words": tokens.words,
            "counts": counts,
        }
        present = {name: array for name, array in arrays.items() if array is not None}
        save_arrays(self.path, present, {"cut": tokens.cut})

    @property
    def tokens(self) -> int:
        """Total number of tokens in all sequences."""
        return len(self.read()[0].ids)

    def read(self) -> tuple[Tokenized, NDArray[np.float32], NDArray[np.int64] | None]:
        """What `write` was given."""
        loaded = load_arrays(self.path)
        assert loaded is not None, self.path
        arrays, about = loaded
        types, words = arrays.get("types"), arrays.get("words")
        tokens = Tokenized(arrays["ids"], arrays["offsets"], types, words, about["cut"])
        return tokens, arrays["labels"], arrays.get("counts")

    def encoded(self, pad: int, device: torch.device) -> EncodedSplit:
        tokens, labels, counts = self.read()
        return EncodedSplit(tokens, labels, self.choices, pad, device, counts)


@dataclass(frozen=True)
class FinetuneTask:
    """What all jobs of one task share.

    Attributes:
        outputs: logits per sequence.
        scored: the labelled splits, by name of the score.
        tested: the unlabelled splits, by `folder.submission_key`; the untrained model does not
            predict these.
        tokens: how many tokens one job trains on.
        majority_class: for kind tokens, the class predicted for truncated words.
        apart: whether each of two texts that have a label together is a sequence of its own.
        scale: of the labels that are fine-tuned on; outputs are on that of the data.
    """

    name: str
    kind: TaskKind
    outputs: int
    train: TokenizedSplit
    scored: dict[str, TokenizedSplit]
    tested: dict[str, TokenizedSplit]
    tokens: int
    majority_class: int = 0
    apart: bool = False
    scale: LabelScale = field(default_factory=LabelScale)


@dataclass(frozen=True)
class SplitWriter:
    """Tokenizes and writes the splits of a task, and counts truncated sequences.

    Attributes:
        apart: whether each of two texts is a sequence of its own.
        scale: of the labels that are written.
        cut: how many sequences of each split were truncated.
    """

    backbone: Backbone
    task: Task
    max_length: int
    scratch: Path
    apart: bool
    scale: LabelScale
    cut: dict[str, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def write(self, split: str, rows: Rows) -> TokenizedSplit:
        tokens, sequences, counts = tokenized(
            self.backbone, rows, self.task.kind, self.max_length, apart=self.apart
        )
        written = TokenizedSplit(self.scratch / f"{next(self._numbers)}.npz", sequences)
        written.write(tokens, self.scale.scaled(rows.labels), counts)
        self.cut[split] = tokens.cut
        return written


def tokenized(
    backbone: Backbone, rows: Rows, kind: TaskKind, max_length: int, *, apart: bool
) -> tuple[Tokenized, int, NDArray[np.int64] | None]:
    """The tokens of rows, the number of sequences in a row, and word counts.

    The latter are the number of words in each sequence, for kind tokens, or else None.
    """
    texts, sequences = rows.texts, rows.choices
    if apart:
        texts, sequences = [(text,) for pair in rows.texts for text in pair], 2
    words = kind == "tokens"
    counts = np.array([len(row) for row in rows.texts], np.int64) if words else None
    return backbone.tokenize(texts, max_length, words=words), sequences, counts
