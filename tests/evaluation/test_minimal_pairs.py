"""Minimal pairs of one's own: read, scored as BLiMP is, shown beside other tasks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
import yaml
from rich.table import Table

from crammed.errors import InputError
from crammed.evaluation.backbones.run_directory import RunBackbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.blimp import blimp_score, sentence_scores
from crammed.evaluation.evaluation import evaluate
from crammed.evaluation.minimal_pairs import pairs_json
from crammed.evaluation.scores.table import NO_SEEDS, ROWS_ONLY, score_tables
from crammed.finetuned.keeping import keep
from crammed.report.page import write_report
from crammed.tasks.read import read_pairs_of
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task, load_suite
from crammed.terminal.progress import SILENT, Progress
from support.backbones import Load
from support.command import crammed
from support.evaluation import Ask
from support.text import sentences, write_rows

PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": uid, "field": "f"}
    for n, (good, bad) in enumerate(zip(sentences(24), sentences(48)[24:], strict=True))
    for uid in [("one", "two")[n % 3 == 0]]
]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite with a task of pairs in groups."""
    write_rows(tmp_path / "agreement" / "validation.jsonl", PAIRS)
    file = tmp_path / "mine.yaml"
    tasks = {"agreement": {"kind": "minimal-pairs", "group": "UID"}}
    file.write_text(yaml.safe_dump({"tasks": tasks, "means": {"all": ["agreement"]}}))
    return file


def test_pairs_are_scored_as_those_of_blimp(tmp_path: Path, ask: Ask, suite: Path) -> None:
    done = evaluate(ask(suite=str(suite)), SILENT)
    score = done["suites"]["mine"]["tasks"]["agreement"]
    request = ask()
    backbone = BackboneSpec(request.model).load()
    same = blimp_score(backbone, tmp_path / "agreement", torch.device("cpu"))
    assert score["median"] == pytest.approx(same["blimp"])
    assert score["groups"] == pytest.approx(same["paradigm"])
    assert score["interval"] == pytest.approx(same["interval"], abs=6)
    assert score["rows"] == {"validation": 24}
    assert score["kind"] == "minimal-pairs"
    low, high = score["gain"]
    assert low <= score["median"] - score["untrained"]["median"] <= high
    (mean,) = done["suites"]["mine"]["means"]
    assert mean["value"] == score["median"]
    assert mean["untrained"] == score["untrained"]["median"]
    assert evaluate(ask(suite=str(suite)), SILENT)["suites"] == done["suites"]
    write_report([Path(done["folder"])], tmp_path / "report.html")
    assert "agreement" in (tmp_path / "report.html").read_text()


def test_pairs_without_both_sentences_are_skipped_and_counted(
    tmp_path: Path, ask: Ask, suite: Path
) -> None:
    without = [{**PAIRS[0], "sentence_bad": None}, {"sentence_good": "One is all there is."}]
    write_rows(tmp_path / "agreement" / "validation.jsonl", [*PAIRS, *without])
    said = io.StringIO()
    done = evaluate(ask(suite=str(suite), untrained=False), Progress(said))
    score = done["suites"]["mine"]["tasks"]["agreement"]
    assert (score["rows"], score["skipped"]) == ({"validation": 24}, {"validation": 2})
    assert "untrained" not in score
    assert "note  agreement: skipped, without text: 2 rows of validation\n" in said.getvalue()


@pytest.mark.parametrize(
    ("other", "words"),
    [(" ", "one of the sentences is empty"), (PAIRS[0]["sentence_good"], "both .* are the same")],
)
def test_a_pair_of_which_neither_sentence_can_win_is_refused(
    tmp_path: Path, suite: Path, other: str, words: str
) -> None:
    rows = [*PAIRS, {**PAIRS[0], "sentence_bad": other}]
    write_rows(tmp_path / "agreement" / "validation.jsonl", rows)
    loaded = load_suite(str(suite))
    with pytest.raises(InputError, match=rf"validation.jsonl, line 25: {words}.*: correct or rem"):
        read_pairs_of(loaded.tasks["agreement"], tmp_path, loaded)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A suite with a task of pairs that is scored on two splits."""
    for split in ("validation", "test"):
        write_rows(tmp_path / "agreement" / f"{split}.jsonl", PAIRS[split == "test" :: 2])
    task = {"kind": "minimal-pairs", "scored": {"one": "validation", "two": "test"}}
    means = {"both": ["one", "two"], "first": ["one"]}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"tasks": {"agreement": task}, "means": means}))
    return file


def test_two_splits_are_scored_by_one_model_that_is_loaded_once(
    ask: Ask, halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    for name in ("masked_lm", "untrained_masked_lm"):
        real = getattr(RunBackbone, name)
        loads.append(create_autospec(real, side_effect=real))
        monkeypatch.setattr(RunBackbone, name, loads[-1])
    scores = evaluate(ask(suite=str(halves)), SILENT)["suites"]["mine"]["tasks"]
    assert [*scores] == ["one", "two"]
    assert all("untrained" in each for each in scores.values())
    assert [each.call_count for each in loads] == [1, 1]


def test_the_score_on_a_split_that_has_left_the_data_goes_too(
    tmp_path: Path, ask: Ask, halves: Path
) -> None:
    for names, means in ((["one", "two"], ["both", "first"]), (["one"], ["first"])):
        found = evaluate(ask(suite=str(halves), untrained=False), SILENT)["suites"]["mine"]
        assert [*found["tasks"]] == names
        assert [mean["name"] for mean in found["means"]] == means
        (tmp_path / "agreement" / "test.jsonl").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["crammed", "bert"])
def test_an_untrained_model_is_always_the_same_and_not_the_trained_one(
    load_model: Load, name: str
) -> None:
    backbone, cpu = load_model(name), torch.device("cpu")
    one, other = (
        sentence_scores(backbone, sentences(3), cpu, model=backbone.untrained_masked_lm(cpu))
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    assert not np.allclose(one, sentence_scores(backbone, sentences(3), cpu))


def test_the_command_prints_the_score(tmp_path: Path, model: Path, suite: Path) -> None:
    done = crammed(
        *("evaluate", model, "--suite", suite, "--data", tmp_path, "--into", tmp_path / "scores"),
        *("--device", "cpu"),
    )
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())["suites"]["mine"]
    median = scores["tasks"]["agreement"]["median"]
    (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == ["agreement"])
    assert line.split()[2] == f"{median:.1f}"
    assert line.split()[-1] == "24"


def rows(groups: list[str]) -> Rows:
    count = max(len(groups), 8)
    return Rows([("a", "b")] * count, np.full(count, np.nan, np.float32), groups=groups)


def test_groups_count_alike_however_many_pairs_they_have() -> None:
    task = Task.model_validate({"name": "t", "kind": "minimal-pairs", "rows": {"validation": 9}})
    right = np.array([True] * 6 + [False, True])
    score, resampled = pairs_json(task, "t", rows(["x"] * 6 + ["y"] * 2), [right])
    assert score["median"] == 75.0
    assert score["groups"] == {"x": 100.0, "y": 50.0}
    assert score["official"] is False
    assert {*np.round(resampled, 6).tolist()} == {50.0, 75.0, 100.0}
    alone, _ = pairs_json(task, "t", rows([]), [right, ~right])
    assert alone["median"] == 87.5
    assert alone["untrained"]["median"] == 12.5
    assert "groups" not in alone


def test_what_does_not_fit_pairs_is_refused(tmp_path: Path, ask: Ask, suite: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"text": ["a"]}, "takes the columns of two sentences"),
        ({"folds": 3}, "is not fine-tuned: leave out folds"),
        ({"metric": "f1"}, "metric f1 is not for kind minimal-pairs"),
    ]
    for more, words in wrong:
        tasks = {"agreement": {"kind": "minimal-pairs", **more}}
        (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({"tasks": tasks}))
        with pytest.raises(InputError, match=words):
            load_suite(str(tmp_path / "wrong.yaml"))
    with pytest.raises(InputError, match="nothing is fine-tuned on agreement"):
        keep(ask(suite=str(suite)), tmp_path / "kept", SILENT)
    (tmp_path / "agreement" / "validation.jsonl").write_text('{"sentence_good": "a"}\n')
    with pytest.raises(InputError, match="sentence_bad"):
        evaluate(ask(suite=str(suite)), SILENT)


def test_pairs_beside_a_task_that_is_fine_tuned(
    tmp_path: Path, ask: Ask, suite: Path, glue: Path
) -> None:
    (tmp_path / "agreement").rename(glue / "agreement")
    values = yaml.safe_load(suite.read_text())
    cola = {"text": "sentence", "labels": 2, "metric": "accuracy", "test": {"CoLA.tsv": "test"}}
    values["tasks"]["cola"] = cola
    values["means"] = {"all": ["agreement", "cola"]}
    suite.write_text(yaml.safe_dump(values))
    write_rows(glue / "cola" / "test.jsonl", [{"sentence": text} for text in sentences(2)])
    request = ask(suite=str(suite), data=str(glue), seeds=1, submission=tmp_path / "all.zip")
    done = evaluate(request, SILENT)
    assert done["missing"] == []
    scores = done["suites"]["mine"]
    assert [*scores["tasks"]] == ["agreement", "cola"]
    both = [scores["tasks"][name]["median"] for name in scores["tasks"]]
    (mean,) = scores["means"]
    assert mean["value"] == pytest.approx(sum(both) / 2)
    assert mean["interval"] is not None
    for tasks, words in ((["agreement"], NO_SEEDS), (["agreement", "cola"], ROWS_ONLY)):
        some = {"tasks": {name: scores["tasks"][name] for name in tasks}, "means": []}
        (table, notes, *_) = score_tables("mine", some, {"probe": None}, None)
        assert str(notes).endswith(words)
        assert isinstance(table, Table)
        assert next(iter(table.columns[4].cells)) == "no seeds"
