"""README.md of a fine-tuned model: its score, how it tells each class, and its surest mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crammed.evaluation.scores.judged import MOST_CLASSES, Judged, shortened
from crammed.evaluation.scores.notes import notes
from crammed.export.card import Metadata
from crammed.finetuned.folder import Description

_PIPELINES = {"tokens": "token-classification", "choice": "multiple-choice"}
_APART = (
    "It encodes the two texts separately and compares them. `transformers` has no class for this "
    "and loads only the encoder, so use this command to predict."
)
_FOLDED = " The kept model was trained on all rows; the score comes from {}-fold cross-validation."
_SCALED = (
    "The model computes standardized values: multiply its output by {0.deviation:.6g} and add "
    "{0.mean:.6g}, as this command does."
)


def describe(description: Description, judged: Judged, metadata: Metadata, *, trust: bool) -> str:
    """The whole page, as Markdown.

    Args:
        metadata: what it inherits from the encoder's card.
        trust: whether the model comes with code that has to be allowed.
    """
    task, allow = description.task, " --trust-remote-code" * trust
    pipeline = _PIPELINES.get(task.kind, "text-classification")
    hub = [] if description.apart else ["library_name: transformers", f"pipeline_tag: {pipeline}"]
    folds = _FOLDED.format(task.folds) if task.folds else ""
    lines = [
        "---",
        *hub,
        *metadata.origin(),
        "tags: [crammed, custom_code]" if trust else "tags: [crammed]",
        "---",
        "",
        f"# `{shortened(description.encoder).replace('`', '')}`, fine-tuned on {task.name}",
        "",
        *[_score_line(name, score) for name, score in description.scores.items()],
        *[f"- {note}" for note in notes(description.scores)],
        "",
        f"The weights are those of {_which_seed(description)}. Inputs are truncated at "
        f"{description.max_length} tokens.{folds}",
        *([_APART] if description.apart else []),
        *([_SCALED.format(scale)] if (scale := description.scale) else []),
        "",
        "```sh",
        f"crammed predict path/to/this/folder{allow} --data rows.csv",
        "```",
        "",
    ]
    if classes := judged.classes():
        lines += [f"## {judged.name}, class by class", "", *_class_table(classes), ""]
        if confusion := judged.confusion():
            table = _confusion(judged.labels, confusion)
            lines += ["Rows are labels, columns are predictions:", "", *table, ""]
    if mistakes := judged.mistakes():
        lines += ["## The most confident mistakes", "", "| text | label | predicted | |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {_cell(text)} | {_cell(label)} | {_cell(guess)} | {100 * share:.0f} % |"
            for text, label, guess, share in mistakes
        ]
    return "\n".join(lines).rstrip() + "\n"


def _which_seed(description: Description) -> str:
    """The seed whose weights are kept, counted from 1 in words, and as task.json has it."""
    seeds = max((len(each.get("seeds", ())) for each in description.scores.values()), default=1)
    if seeds < 2:
        return "the only seed"
    number, middle = description.seed, "the median" if seeds % 2 else "the lower of the middle two"
    return (
        f"number {number + 1} of the {seeds} seeds (`seed` {number} in task.json), whose score is "
        f"{middle}"
    )


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


def _confusion(labels: Sequence[str], confusion: list[list[int]]) -> list[str]:
    names = [_cell(label) for label in labels]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, counts in zip(names, confusion, strict=True):
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return lines


def _cell(text: str) -> str:
    """Text in one line of a Markdown table, not too long, in which nothing is markup."""
    return "".join(f"\\{c}" if c in "\\|`*_[]<>#" else c for c in shortened(text))
