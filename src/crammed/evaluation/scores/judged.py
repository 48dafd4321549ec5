"""How a fine-tuned model tells the classes of a labelled split, and its surest mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, model_validator

from crammed.evaluation.scores.predictions import Outputs, predictions, probabilities
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task

MOST_MISTAKES, MOST_CLASSES, MOST_CHARACTERS = 20, 30, 200


@dataclass(frozen=True)
class Judged:
    """What a fine-tuned model says of a labelled split.

    Attributes:
        name: of the score.
        outputs: those of the rows.
    """

    task: Task
    labels: tuple[str, ...]
    name: str
    rows: Rows
    outputs: Outputs

    def classes(self) -> list[dict[str, Any]]:
        """``{"label", "rows", "precision", "recall", "f1"}`` of each class, shares in percent.

        A share is None where nothing was predicted, or nothing is there. Empty for regression.
        """
        if self.task.kind == "regression":
            return []
        truth, guess, _ = predictions(self.outputs, self.rows)
        found = []
        for number, label in enumerate(self.labels):
            here = truth[:, number] == 1 if truth.ndim == 2 else truth == number
            said = guess[:, number] == 1 if truth.ndim == 2 else guess == number
            hits = int((here & said).sum())
            found.append(
                {
                    "label": label,
                    "rows": int(here.sum()),
                    "precision": _share(hits, int(said.sum())),
                    "recall": _share(hits, int(here.sum())),
                    "f1": _share(2 * hits, int(here.sum()) + int(said.sum())),
                }
            )
        return found

    def confusion(self) -> list[list[int]]:
        """How many rows of each class (a line) were taken for each class (a column).

        Empty for regression, several labels in a row, and more than `MOST_CLASSES` classes.
        """
        several = self.rows.labels.ndim == 2 or self.task.kind == "regression"
        if several or not 2 <= len(self.labels) <= MOST_CLASSES:
            return []
        truth, guess, _ = predictions(self.outputs, self.rows)
        count = len(self.labels)
        table = np.bincount(truth * count + guess, minlength=count * count)
        rows: list[list[int]] = table.reshape(count, count).tolist()
        return rows

    def mistakes(self) -> list[tuple[str, str, str, float]]:
        """(texts, label, predicted, probability) of the wrong rows it was surest of."""
        if self.task.kind not in ("classification", "choice"):
            return []
        shares = probabilities(self.outputs, several=False)
        guess, truth = shares.argmax(-1), self.rows.labels.astype(np.int64)
        wrong = np.flatnonzero(guess != truth)
        surest = wrong[np.argsort(-shares[wrong, guess[wrong]], kind="stable")][:MOST_MISTAKES]
        return [
            (
                self._text(row),
                self.labels[truth[row]],
                self.labels[guess[row]],
                float(shares[row, guess[row]]),
            )
            for row in surest.tolist()
        ]

    def _text(self, row: int) -> str:
        """The texts of a row, with those of all answers to choose from."""
        first = row * self.rows.choices
        answers = self.rows.texts[first : first + self.rows.choices]
        return " | ".join([*answers[0][:-1], *(texts[-1] for texts in answers)])

    def told(self) -> dict[str, Any]:
        """The confusion matrix and the mistakes, as `Told` reads them."""
        mistakes = [
            (shortened(text), label, guess, share) for text, label, guess, share in self.mistakes()
        ]
        return {"labels": self.labels, "confusion": self.confusion(), "mistakes": mistakes}


class Told(BaseModel):
    """What `Judged.told` left in a file."""

    labels: list[str]
    confusion: list[list[Annotated[int, Field(ge=0)]]]
    mistakes: list[tuple[str, str, str, Annotated[float, Field(ge=0.0, le=1.0)]]]

    @model_validator(mode="after")
    def _is_square(self) -> Told:
        lengths = {len(self.confusion), *map(len, self.confusion)} if self.confusion else set()
        if not lengths <= {len(self.labels)}:
            raise ValueError("confusion must have a line and a column for each label")
        return self


def shortened(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= MOST_CHARACTERS else f"{short[:MOST_CHARACTERS]}..."


def _share(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None
