from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.evaluate.submission import write_submission
from crammed.evaluate.task import Suite, load_suite

GLUE = {
    "CoLA.tsv": ("0", "1"),
    "SST-2.tsv": ("0", "1"),
    "MRPC.tsv": ("0", "1"),
    "STS-B.tsv": (),
    "QQP.tsv": ("0", "1"),
    "MNLI-m.tsv": ("entailment", "neutral", "contradiction"),
    "MNLI-mm.tsv": ("entailment", "neutral", "contradiction"),
    "AX.tsv": ("entailment", "neutral", "contradiction"),
    "QNLI.tsv": ("entailment", "not_entailment"),
    "RTE.tsv": ("entailment", "not_entailment"),
    "WNLI.tsv": ("0", "1"),
}


def files_in(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def small(suite: Suite, sizes: int) -> Suite:
    """The suite as if every split had so many rows."""
    tasks = {
        name: task.model_copy(update={"rows": dict.fromkeys(task.rows, sizes)})
        for name, task in suite.tasks.items()
    }
    return suite.model_copy(update={"tasks": tasks})


def test_glues_files_are_as_its_leaderboard_wants_them(tmp_path: Path) -> None:
    suite = small(load_suite("glue"), 2)
    predicted: dict[str, Any] = {
        name: ([0, 1], np.eye(2, max(1, len(labels))) * 6) for name, labels in GLUE.items()
    }
    predicted["STS-B.tsv"] = ([0, 1], np.array([[5.3], [-0.00049]]))
    missing = write_submission(suite, predicted, GLUE, tmp_path / "new/glue.zip")
    assert missing == []
    written = files_in(tmp_path / "new/glue.zip")
    assert written.keys() == GLUE.keys()
    assert written["CoLA.tsv"] == "index\tprediction\n0\t0\n1\t1\n"
    assert written["STS-B.tsv"] == "index\tprediction\n0\t5.000\n1\t0.000\n"
    assert written["AX.tsv"] == "index\tprediction\n0\tentailment\n1\tneutral\n"
    assert written["QNLI.tsv"] == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["glue.zip"]


def test_the_suite_names_the_labels_that_the_leaderboard_wants() -> None:
    suite = load_suite("glue")
    named = {file: task.labels for task in suite.tasks.values() for file in task.test}
    assert named == GLUE


def test_what_the_leaderboard_will_miss_is_said(tmp_path: Path) -> None:
    suite = load_suite("glue")
    predicted = {"RTE.tsv": ([0, 1], np.eye(2))}
    missing = write_submission(suite, predicted, GLUE, tmp_path / "glue.zip")
    assert "RTE.tsv (2 rows instead of 3000)" in missing
    assert {*missing} - {"RTE.tsv (2 rows instead of 3000)"} == GLUE.keys() - {"RTE.tsv"}
    assert files_in(tmp_path / "glue.zip").keys() == {"RTE.tsv"}


def test_superglues_files_are_as_its_leaderboard_wants_them(tmp_path: Path) -> None:
    suite = small(load_suite("superglue"), 2)
    labels = {file: task.labels for task in suite.tasks.values() for file in task.test}
    labels["COPA.jsonl"] = ("0", "1")  # as reading finds them
    predicted: dict[str, Any] = {
        name: ([0, 1], np.eye(2, len(names))) for name, names in labels.items()
    }
    index = [{"paragraph": 3, "question": 8, "answer": n} for n in (4, 5)]
    predicted["MultiRC.jsonl"] = (index, np.eye(2))
    missing = write_submission(suite, predicted, labels, tmp_path / "superglue.zip")
    assert missing == ["ReCoRD.jsonl"]
    written = {
        name: [json.loads(line) for line in text.splitlines()]
        for name, text in files_in(tmp_path / "superglue.zip").items()
    }
    assert written["BoolQ.jsonl"] == [{"idx": 0, "label": "false"}, {"idx": 1, "label": "true"}]
    assert written["WSC.jsonl"][1] == {"idx": 1, "label": "True"}
    assert written["COPA.jsonl"][1] == {"idx": 1, "label": 1}
    assert written["AX-g.jsonl"][1] == {"idx": 1, "label": "not_entailment"}
    answers = [{"idx": 4, "label": 0}, {"idx": 5, "label": 1}]
    questions = [{"idx": 8, "answers": answers}]
    assert written["MultiRC.jsonl"] == [{"idx": 3, "passage": {"questions": questions}}]


def test_a_folder_is_no_place_for_a_submission(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: name the .zip file"):
        write_submission(load_suite("glue"), {}, {}, tmp_path)


def test_a_submission_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):  # more predictions than rows
        write_submission(
            load_suite("glue"), {"RTE.tsv": ([0], np.eye(2))}, GLUE, tmp_path / "glue.zip"
        )
    assert not list(tmp_path.iterdir())
