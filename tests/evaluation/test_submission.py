from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.folder import read_outputs
from crammed.evaluation.submission import write_submission
from crammed.formats.lines import File
from crammed.formats.records import Records
from crammed.formats.tables import csv_records
from crammed.tasks.layouts import _READERS
from crammed.tasks.task import Suite, load_suite
from crammed.terminal.progress import SILENT
from support.evaluation import Ask, tasks_of
from support.tasks import write_task
from support.text import write_rows

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
    """The suite as if every split had this many rows."""
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
    assert written["STS-B.tsv"] == "index\tprediction\n0\t5\n1\t0\n"
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
    labels["COPA.jsonl"] = ("0", "1")  # as `read_task` finds them
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


def suite_of(**task: Any) -> Suite:
    """A user's suite of one task with test files in both forms."""
    test = {"Own.tsv": "test", "Own.jsonl": "more"}
    return Suite.model_validate(
        {"name": "own", "tasks": {"own": {"text": "t", "test": test, **task}}}
    )


def own_files(suite: Suite, outputs: Any, labels: tuple[str, ...], folder: Path) -> tuple[str, Any]:
    """The rows of the .tsv below its header, and the labels of the .jsonl."""
    files = ("Own.tsv", "Own.jsonl")
    predicted = {name: (list(range(len(outputs))), np.array(outputs)) for name in files}
    write_submission(suite, predicted, dict.fromkeys(files, labels), folder / "own.zip")
    written = files_in(folder / "own.zip")
    rows = [json.loads(line)["label"] for line in written["Own.jsonl"].splitlines()]
    return written["Own.tsv"].removeprefix("index\tprediction\n"), rows


def test_values_are_limited_only_where_the_suite_says_so(tmp_path: Path) -> None:
    suite = suite_of(kind="regression", metric="pearson")
    outputs = [[-3.25], [123.456]]
    table, values = own_files(suite, outputs, (), tmp_path)
    assert table == "0\t-3.25\n1\t123.456\n"
    assert values == [-3.25, 123.456]
    limited = suite.model_copy(update={"between": {"Own.tsv": (0.0, 100.0)}})
    table, values = own_files(limited, outputs, (), tmp_path)
    assert table == "0\t0\n1\t100\n"
    assert values == [-3.25, 123.456]


def test_of_several_labels_all_that_are_predicted_are_written(tmp_path: Path) -> None:
    suite = suite_of(kind="multi-label", metric="micro-f1")
    outputs = [[2.0, -1.0, 0.5], [-1.0, -2.0, -0.5]]
    table, values = own_files(suite, outputs, ("art", "law", "7"), tmp_path)
    assert table == "0\tart, 7\n1\t\n"
    assert values == [["art", 7], []]


def test_classes_that_are_numbers_are_numbers_in_json(tmp_path: Path) -> None:
    suite = suite_of(metric="accuracy")
    table, values = own_files(suite, np.eye(2), ("-1", "1"), tmp_path)
    assert table == "0\t-1\n1\t1\n"
    assert values == [-1, 1]


def test_numbers_of_rows_may_be_objects_of_any_keys(tmp_path: Path) -> None:
    index = [{"doc": 1}, {"doc": 2}]
    predicted = {"Own.jsonl": (index, np.eye(2))}
    names = {"Own.jsonl": ("no", "yes")}
    write_submission(suite_of(metric="accuracy"), predicted, names, tmp_path / "own.zip")
    rows = map(json.loads, files_in(tmp_path / "own.zip")["Own.jsonl"].splitlines())
    assert [*rows] == [{"idx": index[0], "label": "no"}, {"idx": index[1], "label": "yes"}]


def test_a_folder_is_no_place_for_a_submission(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: name the .zip file"):
        write_submission(load_suite("glue"), {}, {}, tmp_path)


def test_a_submission_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):  # more predictions than rows
        write_submission(
            load_suite("glue"), {"RTE.tsv": ([0], np.eye(2))}, GLUE, tmp_path / "glue.zip"
        )
    assert not list(tmp_path.iterdir())


def test_a_submission_holds_what_the_median_seed_predicts(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "cola", rows=40)
    rows = [{"sentence": f"harbour number {n}", "idx": n} for n in range(7)]
    write_rows(tmp_path / "cola" / "test.jsonl", rows)
    before = evaluate(ask(seeds=3, untrained=False), SILENT)
    archive = tmp_path / "submission.zip"
    after = evaluate(ask(seeds=1, untrained=False, submission=archive), SILENT)
    assert tasks_of(before) == tasks_of(after), "fewer seeds take none away"
    assert (after["submission"], after["max_length"]) == (str(archive), 32)
    assert {"RTE.tsv", "AX.tsv", "CoLA.tsv (7 rows instead of 1063)"} <= set(after["missing"])
    seeds = tasks_of(after)["cola"]["seeds"]
    middle = seeds.index(sorted(seeds)[1])
    outputs = outputs_on_test(tmp_path / "scores", middle)
    ((name, table),) = files_in(archive).items()
    predicted = [f"{n}\t{best}" for n, best in enumerate(outputs.argmax(1))]
    assert (name, table.splitlines()) == ("CoLA.tsv", ["index\tprediction", *predicted])


def outputs_on_test(folder: Path, seed: int) -> NDArray[np.float32]:
    """Outputs of the model with that seed on CoLA's test split, [R, 2]."""
    found = read_outputs(folder, "glue", "cola", seed)
    (name,) = (name for name in found if name.startswith("test/CoLA.tsv/"))
    return found[name]


def test_test_rows_that_changed_are_predicted_again(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "cola", rows=40)
    write_task(tmp_path, "sst2", rows=40)
    rows = [{"sentence": text, "idx": n} for n, text in enumerate(["a harbour", "garden", "b"])]
    file = tmp_path / "cola" / "test.jsonl"
    write_rows(file, rows)
    archive, folder = tmp_path / "submission.zip", tmp_path / "scores"
    request = ask(seeds=1, untrained=False, submission=archive)
    evaluate(request, SILENT)
    before, written = outputs_on_test(folder, 0), archive_rows(archive)
    write_rows(file, reversed(rows))
    # If they are not asked for, neither they nor their old outputs cause fine-tuning again.
    done = folder / "predictions/glue/cola/trained-0.npz"
    at = done.stat().st_mtime_ns
    evaluate(ask(seeds=1, untrained=False), SILENT)
    evaluate(replace(request, tasks=("sst2",)), SILENT)
    assert done.stat().st_mtime_ns == at
    assert archive_rows(archive) == written
    evaluate(request, SILENT)
    np.testing.assert_allclose(outputs_on_test(folder, 0), before[::-1], atol=1e-5)
    assert [row[0] for row in archive_rows(archive)] == ["2", "1", "0"]


def archive_rows(archive: Path) -> list[list[str]]:
    """Rows of the submission's CoLA.tsv."""
    return [line.split("\t") for line in files_in(archive)["CoLA.tsv"].splitlines()[1:]]


def test_a_submission_counts_the_empty_cells_of_an_only_column(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier version predicted without them does not count."""
    write_task(tmp_path, "cola", rows=40)
    (tmp_path / "cola" / "test.csv").write_text("sentence\na harbour\n\na garden\n")
    archive = tmp_path / "submission.zip"
    request = ask(seeds=1, untrained=False, submission=archive)

    def earlier(file: File) -> Records:
        return (each for each in csv_records(file) if each[1]["sentence"])

    with monkeypatch.context() as patch:
        patch.setitem(_READERS, ".csv", earlier)
        evaluate(request, SILENT)
    assert [row[0] for row in archive_rows(archive)] == ["0", "1"]
    evaluate(request, SILENT)
    assert [row[0] for row in archive_rows(archive)] == ["0", "1", "2"]
