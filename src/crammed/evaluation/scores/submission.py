"""Predictions on test splits in the form that a leaderboard takes: a zip of one file a split."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.files import disk_faults
from crammed.tasks.labels import is_number
from crammed.tasks.task import Kind, Suite

Predicted = Mapping[str, tuple[Sequence[Any], NDArray[np.floating[Any]]]]
"""Leaderboard file -> what the data calls each of R rows, and outputs [R, L] or [R, 1]."""
Answer = str | float | list[str]
"""The name of a class, a value, or the names of the labels that a row has."""


def write_submission(
    suite: Suite, predicted: Predicted, labels: Mapping[str, Sequence[str]], out: Path
) -> list[str]:
    """Write a zip of predictions, ``NAME.tsv`` as GLUE and ``NAME.jsonl`` as SuperGLUE wants them.

    Args:
        labels: leaderboard file -> names of the classes; none for regression.

    Returns:
        what the leaderboard will miss: files that are not there, or with other than the official
        number of rows, which are written all the same.

    Raises:
        InputError: `out` is a folder or cannot be written.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name the .zip file to write")
    missing = []
    aside = out.with_name(f".{out.name}.tmp")
    with disk_faults(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
                for task in suite.tasks.values():
                    for name, split in task.test.items():
                        if name not in predicted:
                            missing.append(name)
                            continue
                        index, outputs = predicted[name]
                        answers = _answers(
                            task.kind, outputs, labels[name], suite.between.get(name)
                        )
                        write = _tsv if name.endswith(".tsv") else _json_lines
                        archive.writestr(name, write(index, answers))
                        official = task.rows.get(split.key, len(index))
                        if official != len(index):
                            missing.append(f"{name} ({len(index)} rows instead of {official})")
            aside.replace(out)
        finally:
            aside.unlink(missing_ok=True)
    return [*missing, *suite.left_out]


def _answers(
    kind: Kind,
    outputs: NDArray[np.floating[Any]],
    labels: Sequence[str],
    between: tuple[float, float] | None,
) -> list[Answer]:
    if kind == "regression":
        values = outputs[:, 0].astype(float)
        return list((values if between is None else values.clip(*between).round(3)).tolist())
    if kind == "multi-label":  # as metrics guess
        return [
            [name for name, logit in zip(labels, row, strict=True) if logit > 0] for row in outputs
        ]
    return [labels[best] for best in outputs.argmax(-1).tolist()]


def _tsv(index: Sequence[Any], answers: Sequence[Answer]) -> str:
    rows = [f"{row}\t{_words(answer)}\n" for row, answer in zip(index, answers, strict=True)]
    return "".join(("index\tprediction\n", *rows))


def _words(answer: Answer) -> str:
    if isinstance(answer, float):
        return f"{answer:.6g}"
    return answer if isinstance(answer, str) else ", ".join(answer)


def _json_lines(index: Sequence[Any], answers: Sequence[Answer]) -> str:
    values = [_json_value(answer) for answer in answers]
    rows = [{"idx": row, "label": value} for row, value in zip(index, values, strict=True)]
    if isinstance(index[0], dict):
        rows = _nested(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _json_value(answer: Answer) -> Any:
    """Values to six digits, and names that are numbers as numbers."""
    if isinstance(answer, list):
        return [_json_value(name) for name in answer]
    if isinstance(answer, float):
        return float(_words(answer))
    return int(answer) if is_number(answer) else answer


def _nested(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """MultiRC's form: answers within questions within paragraphs."""
    paragraphs: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        at = row["idx"]
        answers = paragraphs.setdefault(at["paragraph"], {}).setdefault(at["question"], [])
        answers.append({"idx": at["answer"], "label": row["label"]})
    return [
        {
            "idx": paragraph,
            "passage": {"questions": [{"idx": q, "answers": a} for q, a in questions.items()]},
        }
        for paragraph, questions in paragraphs.items()
    ]
