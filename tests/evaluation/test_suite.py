"""A suite of tasks from data to scores: kept, resumed, compared."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.evaluation import suite
from crammed.evaluation.backbones.run_directory import RunBackbone
from crammed.evaluation.comparison import compare_models
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.folder import outputs_file, read_outputs
from crammed.evaluation.linear import linear_scores
from crammed.evaluation.prepared import remarks
from crammed.evaluation.scores.table import score_tables
from crammed.files.writing import read_json
from crammed.tasks.read import read_task
from crammed.tasks.rows import Rows, Texts
from crammed.tasks.task import load_suite
from crammed.terminal.progress import SILENT, Progress
from crammed.terminal.table import show
from support.evaluation import Ask, make_model, tasks_of
from support.tasks import PAIR, read_mine, suite_of, write_task
from support.text import write_rows


def test_scores_have_seeds_intervals_and_the_untrained_model(tmp_path: Path, ask: Ask) -> None:
    rows = [
        {"sentence1": "a harbour" if n % 2 else "a garden", "sentence2": "b", "label": n % 2}
        for n in range(40)
    ]
    for split, count in (("train", 40), ("validation", 20)):
        write_rows(tmp_path / "rte" / f"{split}.jsonl", rows[:count])
    write_task(tmp_path, "stsb", rows=40)
    write_task(tmp_path, "mnli", rows=40)
    result = evaluate(ask(), SILENT)
    tasks = tasks_of(result)
    assert list(tasks) == ["stsb", "mnli", "mnli-mm", "rte"]
    rte = tasks["rte"]
    assert len(rte["seeds"]) == len(rte["untrained"]["seeds"]) == 2
    assert rte["median"] == pytest.approx(np.median(rte["seeds"]))
    assert rte["rows"] == {"train": 40, "validation": 20}
    assert rte["official"] is False
    assert rte["official_rows"] == {"train": 2490, "validation": 277}
    means = result["suites"]["glue"]["means"]
    assert [mean["name"] for mean in means] == ["mean of stsb, mnli, mnli-mm, rte"]
    assert means[0]["partial"]
    stored = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert stored["suites"]["glue"] == result["suites"]["glue"]
    assert stored["protocol"]["lr"] == 2e-3
    assert result["protocol"] == stored["protocol"]


def test_a_learnable_task_is_learned_in_this_process_and_in_others(
    tmp_path: Path, ask: Ask
) -> None:
    write_task(tmp_path, "cola")
    (tmp_path / "long.yaml").write_text("{seeds: 2, epochs: 8, batch: 8, lr: 3e-3, max_length: 32}")
    long = str(tmp_path / "long.yaml")
    here = evaluate(ask(protocol=long, untrained=False), SILENT)
    assert min(tasks_of(here)["cola"]["seeds"]) > 80.0
    assert "untrained" not in tasks_of(here)["cola"]
    there = evaluate(ask(protocol=long, untrained=False, jobs=2, into=tmp_path / "more"), SILENT)
    for seed in (0, 1):
        outputs = [
            read_outputs(tmp_path / folder, "glue", "cola", seed)["cola"]
            for folder in ("scores", "more")
        ]
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)
    assert tasks_of(here)["cola"] == tasks_of(there)["cola"]


def test_a_linear_model_stands_beside_each_score(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is computed once for the same rows, and left out where models share their twins."""
    write_task(tmp_path, "cola", rows=40)
    scored = tasks_of(evaluate(ask(seeds=1, untrained=False), SILENT))["cola"]
    glue = load_suite("glue")
    read = read_task(glue.tasks["cola"], tmp_path, glue)
    assert {"cola": scored["linear"]} == linear_scores(glue.tasks["cola"], read)
    with monkeypatch.context() as patch:
        patch.setattr(suite, "linear_scores", lambda *_: pytest.fail("computed again"))
        assert tasks_of(evaluate(ask(seeds=1, untrained=False), SILENT))["cola"] == scored
        shared = ask(seeds=1, twins=tmp_path / "twins", into=tmp_path / "other")
        assert "linear" not in tasks_of(evaluate(shared, SILENT))["cola"]
        kept = tasks_of(evaluate(ask(seeds=1, twins=tmp_path / "twins"), SILENT))["cola"]
        assert kept["linear"] == scored["linear"]
    with monkeypatch.context() as patch:  # an earlier version made other features
        patch.setattr("crammed.evaluation.prepared.FEATURES", "words")
        patch.setattr(suite, "linear_scores", lambda *_: {"cola": 1.0})
        changed = tasks_of(evaluate(ask(seeds=1, untrained=False), SILENT))["cola"]
        assert changed["linear"] == 1.0
    monkeypatch.setitem(sys.modules, "sklearn", None)
    shutil.rmtree(tmp_path / "cola")
    write_task(tmp_path, "cola", rows=48)
    said = io.StringIO()
    found = evaluate(ask(seeds=1, untrained=False), Progress(said))
    assert "linear" not in tasks_of(found)["cola"]
    assert said.getvalue().count("pip install 'crammed[linear]'") == 1


def test_another_positive_class_scores_what_was_fine_tuned(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of TF-IDF is scored again, too, and scores of different classes do not compare."""
    suite_file, data = tmp_path / "mine.yaml", tmp_path / "data"
    lines: list[dict[str, Any]]
    lines = [{"text": f"row {n}", "label": ("[ham]", "spam")[n % 3 > 0]} for n in range(40)]
    for split in ("train", "validation"):
        write_rows(data / f"{split}.jsonl", lines)
        lines += [{"text": None, "label": "ham"}] * 2
    request = ask(suite=str(suite_file), data=str(data), seeds=1)

    def scored(**fields: str) -> tuple[dict[str, Any], str]:
        task = {"text": "text", "metric": "f1", "also": "accuracy", **fields}
        suite_file.write_text(json.dumps({"tasks": {"mail": task}}))
        said = io.StringIO()
        return evaluate(request, Progress(said))["suites"]["mine"]["tasks"]["mail"], said.getvalue()

    spam, said = scored()
    note = "note  mail: f1 of spam, the second label in order; for the other one, add positive: "
    assert f"{note}[ham]\n" in said
    assert "note  mail: skipped, without text: 2 rows of validation\n" in said
    assert "note  mail: 40 of 40 rows of validation have the same text as a training row, " in said
    assert spam["rows"] == {"train": 40, "validation": 40}
    assert spam["skipped"] == {"validation": 2}
    assert spam["metric"] == "f1 of spam"
    shutil.copytree(tmp_path / "scores", tmp_path / "before")
    monkeypatch.setattr(suite, "run_jobs", lambda jobs, *_: dict.fromkeys(jobs, "fine-tuned again"))
    ham, said = scored(positive="[ham]")
    assert "positive" not in said
    assert ham["metric"] == "f1 of [ham]"
    assert ham["also"] == spam["also"]
    assert ham["linear"] != spam["linear"]
    assert ham["untrained"] != spam["untrained"]
    shown = io.StringIO()
    show(score_tables("mine", {"tasks": {"mail": ham}, "means": []}, {}, None), shown)
    assert "f1 of [ham]" in shown.getvalue()
    (entry,) = compare_models(tmp_path / "before", tmp_path / "scores", str(suite_file)).entries
    assert entry["why"] == "A has f1 of spam, B has f1 of [ham]: evaluate both again"
    assert scored()[0] == spam
    (same,) = compare_models(tmp_path / "before", tmp_path / "scores", str(suite_file)).entries
    assert same["metric"] == "f1 of spam"


def test_labels_that_differ_in_case_or_spaces_are_said_to_be_classes(tmp_path: Path) -> None:
    labels = ("spam", "Spam", " spam", "ham")
    write_rows(tmp_path / "train.jsonl", [{"text": each, "label": each} for each in labels])
    write_rows(tmp_path / "dev.jsonl", [{"text": "new", "label": "ham"}])
    (tmp_path / "mine.yaml").write_text("tasks: {mail: {text: text, metric: accuracy}}")
    mine = load_suite(str(tmp_path / "mine.yaml"))
    read = read_task(mine.tasks["mail"], tmp_path, mine)
    (said,) = remarks(mine.tasks["mail"], read)
    assert said.startswith("labels ' spam', 'Spam', 'spam' differ only in case or spaces, ")


def test_a_scored_split_that_the_data_lacks_is_named(tmp_path: Path, ask: Ask) -> None:
    """Its name may be misspelt."""
    scored = {"mine": "validation", "typo": "tset"}
    rows = [{"text": each, "label": each} for each in "ab"]
    misspelt = suite_of(scored=scored)
    read = read_mine(tmp_path, misspelt, train=rows, validation=[{"text": "c", "label": "a"}])
    (said,) = remarks(misspelt.tasks["mine"], read)
    assert said == "not scored on tset, which the data lacks"
    write_rows(tmp_path / "mine" / "validation.jsonl", [PAIR])
    (tmp_path / "s.yaml").write_text(f"tasks: {{mine: {{kind: minimal-pairs, scored: {scored}}}}}")
    shown = io.StringIO()
    evaluate(ask(suite=str(tmp_path / "s.yaml"), untrained=False), Progress(shown))
    assert f"note  mine: {said}\n" in shown.getvalue()


def test_rows_whose_texts_are_all_empty_are_counted(tmp_path: Path) -> None:
    """Programs that write tables leave a cell empty where there is no text."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("text,label\n,x\n  ,y\na,x\n")
    (tmp_path / "mine" / "validation.csv").write_text('text,label\nb,x\n"",y\n')
    suite = suite_of()
    read = read_mine(tmp_path, suite)
    assert (len(read.train), len(read.scored["mine"])) == (3, 2)
    said, *_ = remarks(suite.tasks["mine"], read)
    empty = "empty texts in 2 rows of train and 1 row of validation"
    assert said == f"{empty}, which are used like any other"
    pairs: list[Texts] = [("", "b"), ("", " "), ("a", ""), ("", "")]
    assert Rows(pairs, np.zeros(4, np.float32)).empty() == 2
    assert Rows(pairs, np.zeros(2, np.float32), choices=2).empty() == 0


def test_the_score_on_a_split_that_has_left_the_data_goes_too(tmp_path: Path, ask: Ask) -> None:
    """It and the means over it would be of other data than those that are computed again."""
    rows = [{"text": f"{('boat', 'fox')[n % 2]} {n}", "label": n % 2} for n in range(16)]
    for split in ("train", "validation", "test"):
        write_rows(tmp_path / "mine" / f"{split}.jsonl", rows)
    task = "{text: text, metric: accuracy, scored: {one: validation, two: test}}"
    means = "{both: [one, two], first: [one]}"
    (tmp_path / "s.yaml").write_text(f"tasks: {{mine: {task}}}\nmeans: {means}\n")
    request = ask(suite=str(tmp_path / "s.yaml"), seeds=1, untrained=False)

    def scored() -> tuple[list[str], list[str]]:
        found = evaluate(request, SILENT)["suites"]["s"]
        kept = read_json(tmp_path / "scores" / "scores.json") or {}
        assert kept["suites"]["s"] == found
        return [*found["tasks"]], [mean["name"] for mean in found["means"]]

    assert scored() == (["one", "two"], ["both", "first"])
    (tmp_path / "mine" / "test.jsonl").unlink()
    assert scored() == (["one"], ["first"])


def test_scores_of_another_suite_of_the_same_name_do_not_enter_its_means(
    tmp_path: Path, ask: Ask
) -> None:
    """Nor do those of a task that its file defines otherwise now."""
    rows = [{"text": f"{('boat', 'fox')[n % 2]} {n}", "label": n % 2, "b": n % 2} for n in range(9)]
    tasks = ("topics", "pairs", "gone", "other")
    for name in tasks:
        for split in ("train", "validation"):
            lines = [PAIR] if name == "pairs" else rows
            write_rows(tmp_path / name / f"{split}.jsonl", lines)
    one = {"text": "text", "metric": "accuracy"}
    file, said = tmp_path / "mine.yaml", io.StringIO()

    def scored(asked: Sequence[str], **defined: dict[str, Any]) -> tuple[list[str], list[str]]:
        means = {"all": [*defined]}
        file.write_text(json.dumps({"tasks": defined, "means": means}))
        request = ask(suite=str(file), tasks=tuple(asked), seeds=1, untrained=False)
        found = evaluate(request, Progress(said))["suites"]["mine"]
        return [*found["tasks"]], [mean["name"] for mean in found["means"]]

    before = {"topics": one, "pairs": {"kind": "minimal-pairs"}, "gone": one}
    assert scored([*before], **before) == (["topics", "pairs", "gone"], ["all"])
    assert scored(["gone"], **before, other=one)[0] == ["topics", "pairs", "gone"]
    assert "left out" not in said.getvalue()
    after = {"topics": {**one, "label": "b"}, "pairs": one, "other": one}
    assert scored(["other"], **after) == (["other"], [])
    assert (
        "note  left out earlier scores of tasks that suite mine now lacks or defines differently: "
        "topics, pairs, gone\n"
    ) in said.getvalue()
    again = {"topics": {**one, "most_rows": 9}, "other": {**one, "folds": 2}}
    assert scored(["topics"], **again) == (["topics", "other"], ["all"])
    of_one = {**one, "metric": "f1", "positive": "0"}
    assert scored(["topics"], topics=of_one, other=one)[0] == ["topics", "other"]
    of_usual = {**one, "metric": "f1"}  # of the second label
    assert scored(["other"], topics=of_usual, other=one)[0] == ["other"]
    assert scored(["topics"], topics=of_usual, other=one)[0] == ["topics", "other"]
    of_same = {**of_one, "positive": "1"}
    assert scored(["other"], topics=of_same, other=one)[0] == ["topics", "other"]
    assert scored(["other"], topics=of_one, other=one)[0] == ["other"]


def test_finished_jobs_are_never_done_again(tmp_path: Path, ask: Ask) -> None:
    write_task(tmp_path, "cola", rows=40)
    write_task(tmp_path, "sst2", rows=40)
    first = tasks_of(evaluate(ask(), SILENT))
    files = sorted((tmp_path / "scores" / "predictions").rglob("*.npz"))
    assert len(files) == 8
    before = {file: file.stat().st_mtime_ns for file in files}
    files[0].unlink()
    stopped = files[-1].read_bytes()
    files[-1].write_bytes(stopped[: len(stopped) // 2])  # as a full disk leaves it

    again = tasks_of(evaluate(ask(), SILENT))
    assert again == first
    redone = [file for file in files if file.stat().st_mtime_ns != before[file]]
    assert redone == [files[0], files[-1]]

    # Fewer seeds, fewer tasks, no untrained model: nothing is lost, and more seeds only add.
    assert tasks_of(evaluate(ask(seeds=1, tasks=("cola",), untrained=False), SILENT)) == first
    more = tasks_of(evaluate(ask(seeds=3, tasks=("cola",)), SILENT))
    assert more["cola"]["seeds"][:2] == first["cola"]["seeds"]
    assert len(more["cola"]["seeds"]) == len(more["cola"]["untrained"]["seeds"]) == 3
    assert more["sst2"] == first["sst2"]

    # Changed rows make it a different task.
    shutil.rmtree(tmp_path / "cola")
    write_task(tmp_path, "cola", rows=48)
    assert tasks_of(evaluate(ask(tasks=("cola",)), SILENT))["cola"]["rows"]["train"] == 48


def test_a_model_is_fine_tuned_again_if_an_earlier_version_left_it_another_dropout(
    tmp_path: Path, ask: Ask, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, "cola", rows=40)
    asked = ask(model=str(model_folders["bert"]), protocol="cramming", seeds=1, untrained=False)
    folder = Path(evaluate(asked, SILENT)["folder"])
    file = outputs_file(folder, "glue", "cola", 0, trained=True)
    first = file.stat().st_mtime_ns
    evaluate(asked, SILENT)
    assert file.stat().st_mtime_ns == first
    monkeypatch.setattr(suite, "DROPOUT", "its own")  # as an earlier version did
    evaluate(asked, SILENT)
    assert file.stat().st_mtime_ns > first


def test_a_task_is_done_again_if_an_earlier_version_read_a_text_in_another_form(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, "cola", rows=40)
    asked, times = ask(protocol="knn-probe", untrained=False), []
    for composes in (False, False, True):
        monkeypatch.setattr(RunBackbone, "composes", lambda *_, found=composes: found)
        evaluate(asked, SILENT)
        file = outputs_file(tmp_path / "scores", "glue", "cola", 0, trained=True)
        times.append(file.stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]


def test_two_models_are_compared_pair_by_pair(tmp_path: Path, ask: Ask, corpus: Corpus) -> None:
    write_task(tmp_path, "cola", rows=64)
    write_task(tmp_path, "sst2", rows=40)
    other = make_model(tmp_path / "other", corpus, 1)
    one, two = tmp_path / "scores", tmp_path / "two"
    a = tasks_of(evaluate(ask(untrained=False), SILENT))
    b = tasks_of(
        evaluate(ask(model=str(other), into=two, untrained=False, tasks=("cola",)), SILENT)
    )
    result = compare_models(one, two, "glue")
    assert (result.a, result.b, result.notes) == ("model", "other", [])
    entries = {entry["name"]: entry for entry in result.entries}
    cola = entries["cola"]
    assert cola["difference"] == pytest.approx(a["cola"]["median"] - b["cola"]["median"])
    assert cola["interval"][0] <= cola["difference"] <= cola["interval"][1]
    assert entries["sst2"]["why"] == "B has no score"
    shutil.copytree(one, tmp_path / "copy")
    same = compare_models(one, tmp_path / "copy", "glue")
    assert all(entry["same"] and entry["interval"] is None for entry in same.entries)
    assert same.notes == ["A and B are the same model: the hash of their files is the same"]
    assert (same.a, same.b) == (str(one), str(tmp_path / "copy"))
    with pytest.raises(InputError, match=r"A and B are both .*scores: name two different"):
        compare_models(one, tmp_path / "copy" / ".." / "scores", "glue")
    with pytest.raises(InputError, match="holds no evaluation"):
        compare_models(one, tmp_path / "cola", "glue")
    has = "no scores of swag, but it has scores of glue: add --suite glue, or evaluate that model"
    with pytest.raises(InputError, match=has):
        compare_models(one, two, "swag")
