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
from crammed.evaluate.task import Suite
from crammed.files import disk_faults

Predicted = Mapping[str, tuple[Sequence[Any], NDArray[np.floating[Any]]]]
"""Leaderboard file -> what the data calls each of R rows, and outputs [R, L] or [R, 1]."""

_LARGEST = 5.0  # of STS-B's similarities


def write_submission(
    suite: Suite, predicted: Predicted, labels: Mapping[str, Sequence[str]], out: Path
) -> list[str]:
    """Write a zip of predictions, ``NAME.tsv`` as GLUE and ``NAME.jsonl`` as SuperGLUE wants them.

    Args:
        labels: leaderboard file -> names of the classes; none for a similarity from 0 to 5.

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
                        write = _tsv if name.endswith(".tsv") else _json_lines
                        archive.writestr(name, write(index, _answers(outputs, labels[name])))
                        official = task.rows.get(split.key, len(index))
                        if official != len(index):
                            missing.append(f"{name} ({len(index)} rows instead of {official})")
            aside.replace(out)
        finally:
            aside.unlink(missing_ok=True)
    return [*missing, *suite.left_out]


def _answers(outputs: NDArray[np.floating[Any]], labels: Sequence[str]) -> list[str]:
    if not labels:
        return [f"{value:.3f}" for value in outputs[:, 0].clip(0.0, _LARGEST).tolist()]
    return [labels[best] for best in outputs.argmax(-1).tolist()]


def _tsv(index: Sequence[Any], answers: Sequence[str]) -> str:
    rows = [f"{row}\t{answer}\n" for row, answer in zip(index, answers, strict=True)]
    return "".join(("index\tprediction\n", *rows))


def _json_lines(index: Sequence[Any], answers: Sequence[str]) -> str:
    values = [int(answer) if answer.isdigit() else answer for answer in answers]
    rows = [{"idx": row, "label": value} for row, value in zip(index, values, strict=True)]
    if isinstance(index[0], dict):
        rows = _nested(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


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
