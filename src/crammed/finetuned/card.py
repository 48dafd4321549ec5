"""README.md of a fine-tuned model: its score, how it tells each class, and its surest mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crammed.evaluation.scores.notes import notes
from crammed.evaluation.scores.predictions import Outputs, predictions
from crammed.finetuned.folder import Description
from crammed.finetuned.prediction import probabilities
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
        """How many rows of each class (a line) were taken for each class (a column)."""
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
                " | ".join(self.rows.texts[row * self.rows.choices]),
                self.labels[truth[row]],
                self.labels[guess[row]],
                float(shares[row, guess[row]]),
            )
            for row in surest.tolist()
        ]


def _share(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def describe(description: Description, judged: Judged) -> str:
    """The whole page, as Markdown."""
    task = description.task
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {'token' if task.kind == 'tokens' else 'text'}-classification",
        "tags: [crammed]",
        "---",
        "",
        f"# {_cell(description.encoder)}, fine-tuned on {task.name}",
        "",
        *[_score_line(name, score) for name, score in description.scores.items()],
        *[f"- {note}" for note in notes(description.scores)],
        "",
        f"The weights are those of seed {description.seed + 1}, whose score is the median. Inputs "
        f"are truncated at {description.max_length} tokens.",
        "",
        "```sh",
        "crammed predict path/to/this/folder --data rows.csv",
        "```",
        "",
    ]
    if classes := judged.classes():
        lines += [f"## {judged.name}, class by class", "", *_class_table(classes), ""]
        if 2 <= len(judged.labels) <= MOST_CLASSES and judged.rows.labels.ndim == 1:
            lines += ["Labels in lines, predictions in columns:", "", *_confusion(judged), ""]
    if mistakes := judged.mistakes():
        lines += ["## The mistakes it is surest of", "", "| text | label | predicted | |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {_cell(text)} | {_cell(label)} | {_cell(guess)} | {100 * share:.0f} % |"
            for text, label, guess, share in mistakes
        ]
    return "\n".join(lines).rstrip() + "\n"


def _score_line(name: str, score: dict[str, Any]) -> str:
    if "failed" in score:
        return f"- {name}: no score, {score['failed']}"
    seeds = f"{len(score['seeds'])} seeds" if len(score["seeds"]) > 1 else "one seed"
    line = f"- {name}: {_cell(score['metric'])} {score['median']:.1f} (median of {seeds})"
    floor = score.get("untrained", {}).get("median")
    others = [("without pretraining", floor), ("TF-IDF with a linear model", score.get("linear"))]
    return line + "".join(f"; {what} {value:.1f}" for what, value in others if value is not None)


def _class_table(classes: list[dict[str, Any]]) -> list[str]:
    lines = ["| class | rows | precision | recall | F1 |", "|---|---|---|---|---|"]
    for each in classes[:MOST_CLASSES]:
        shares = (each[key] for key in ("precision", "recall", "f1"))
        cells = ("" if share is None else f"{share:.1f}" for share in shares)
        lines.append(f"| {_cell(each['label'])} | {each['rows']} | {' | '.join(cells)} |")
    if len(classes) > MOST_CLASSES:
        lines.append(f"| and {len(classes) - MOST_CLASSES} more | | | | |")
    return lines


def _confusion(judged: Judged) -> list[str]:
    names = [_cell(label) for label in judged.labels]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, counts in zip(names, judged.confusion(), strict=True):
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return lines


def _cell(text: str) -> str:
    """Text in one line of a Markdown table, not too long, in which nothing is markup."""
    short = " ".join(text.split())
    short = short if len(short) <= MOST_CHARACTERS else f"{short[:MOST_CHARACTERS]}..."
    return "".join(f"\\{c}" if c in "\\|`*_[]<>#" else c for c in short)
