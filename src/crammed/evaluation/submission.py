"""Test-split predictions in the format that leaderboards accept: a zip with one file per split."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.evaluation.folder import EvaluationFolder, read_gold, read_outputs, submission_key
from crammed.evaluation.suite import first_score, median_seed
from crammed.files.writing import write_chunks
from crammed.tasks.labels import is_number
from crammed.tasks.task import Suite, TaskKind

Predicted = Mapping[str, tuple[Sequence[Any], NDArray[np.floating[Any]]]]
"""Leaderboard file -> the data's own identifier of each of R rows, and outputs [R, L] or [R, 1]."""
Answer = str | float | list[str]
"""A class name, a value, or the names of all labels of a row."""


def submit(
    folder: EvaluationFolder, suite: Suite, scores: Mapping[str, Any], out: Path
) -> list[str]:
    """Write the test-split predictions of each task's median-scoring seed.

    Args:
        scores: the suite's scores as JSON, ``{"tasks", "means"}``.

    Returns:
        what the submission lacks, as `write_submission` returns it.

    Raises:
        InputError: predictions are missing from the folder, or `out` cannot be written.
    """
    predicted: dict[str, tuple[Sequence[Any], NDArray[np.floating[Any]]]] = {}
    labels: dict[str, Sequence[str]] = {}
    for name, task in suite.tasks.items():
        score = first_score(task, scores)
        if not task.test or not score.get("seeds"):
            continue
        outputs = read_outputs(folder.path, suite.name, name, median_seed(score))
        for file in task.test:
            if not any(each.startswith(f"test/{file}/") for each in outputs):
                continue
            rows, described = read_gold(folder.path, suite.name, f"test-{file}")
            own = submission_key(file, described["sha256"])
            if own in outputs:
                predicted[file] = rows.index, outputs[own]
                labels[file] = described["labels"]
    return write_submission(suite, predicted, labels, out)


def write_submission(
    suite: Suite, predicted: Predicted, labels: Mapping[str, Sequence[str]], out: Path
) -> list[str]:
    """Write a zip of predictions: ``NAME.tsv`` in GLUE's format, ``NAME.jsonl`` in SuperGLUE's.

    Args:
        labels: leaderboard file -> names of the classes; none for regression.

    Returns:
        what the submission lacks: files without predictions, and files whose number of rows is not
        the official one, which are written anyway.

    Raises:
        InputError: `out` is a folder or cannot be written.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder: name the .zip file to write")
    missing: list[str] = []
    contents: dict[str, str] = {}
    files = [(t, name, split) for t in suite.tasks.values() for name, split in t.test.items()]
    for task, name, split in files:
        if name not in predicted:
            missing.append(name)
            continue
        index, outputs = predicted[name]
        answers = _answers(task.kind, outputs, labels[name], suite.between.get(name))
        contents[name] = (_tsv if name.endswith(".tsv") else _json_lines)(index, answers)
        official = task.rows.get(split.key, len(index))
        if official != len(index):
            missing.append(f"{name} ({len(index)} rows instead of {official})")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    write_chunks(out, [made.getbuffer()])
    return [*missing, *suite.left_out]


def _answers(
    kind: TaskKind,
    outputs: NDArray[np.floating[Any]],
    labels: Sequence[str],
    between: tuple[float, float] | None,
) -> list[Answer]:
    if kind == "regression":
        values = outputs[:, 0].astype(float)
        return list((values if between is None else values.clip(*between).round(3)).tolist())
    if kind == "multi-label":  # the metrics use the same threshold
        return [
            [name for name, logit in zip(labels, row, strict=True) if logit > 0] for row in outputs
        ]
    return [labels[best] for best in outputs.argmax(-1).tolist()]


def _tsv(index: Sequence[Any], answers: Sequence[Answer]) -> str:
    rows = [f"{row}\t{_cell(answer)}\n" for row, answer in zip(index, answers, strict=True)]
    return "".join(("index\tprediction\n", *rows))


def _cell(answer: Answer) -> str:
    if isinstance(answer, float):
        return f"{answer:.6g}"
    return answer if isinstance(answer, str) else ", ".join(answer)


def _json_lines(index: Sequence[Any], answers: Sequence[Answer]) -> str:
    values = [_json_value(answer) for answer in answers]
    rows = [{"idx": row, "label": value} for row, value in zip(index, values, strict=True)]
    if isinstance(index[0], dict) and index[0].keys() == {"paragraph", "question", "answer"}:
        rows = _nested(rows)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _json_value(answer: Answer) -> Any:
    """Values are rounded to six digits; names that are numbers become numbers."""
    if isinstance(answer, list):
        return [_json_value(name) for name in answer]
    if isinstance(answer, float):
        return float(_cell(answer))
    return int(answer) if is_number(answer) else answer


def _nested(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """MultiRC's format: answers nested in questions, which are nested in paragraphs."""
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
