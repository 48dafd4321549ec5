"""Texts of one's own tasks as text to adapt to: training rows alone, without labels."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crammed
from crammed.config import DataConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.manifest import changed_files
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.terminal.progress import SILENT
from support.adapting import SMALL
from support.command import crammed as command
from support.models import save_model
from support.text import documents, write_jsonl, write_rows

KINDS = """
tasks:
  pairs: {text: [one, "So: {other}"], metric: accuracy}
  tags: {kind: tokens, text: words, label: tags, metric: accuracy}
  exam: {kind: choice, text: question, choices: answers, metric: accuracy}
"""


def write(folder: Path, task: str, split: str, rows: list[dict[str, Any]]) -> None:
    write_rows(folder / task / f"{split}.jsonl", rows)


def texts(folder: Path, suite: Path) -> list[str]:
    """What is read of the tasks in a folder."""
    data = DataConfig.model_validate({"sources": [{"path": str(folder), "suite": str(suite)}]})
    return [text for s in open_sources(data) for part in s.parts for text in part.documents()]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A suite of one's own whose three splits have words of their own."""
    (tmp_path / "mine.yaml").write_text("tasks: {boats: {text: text, metric: accuracy}}\n")
    for split, words in (("train", "trained"), ("validation", "scored"), ("test", "tested")):
        rows = [{"text": f"{words} {text}", "label": "secret"} for text in documents(200)]
        rows[0]["label"] = "other"
        write(tmp_path / "tasks", "boats", split, rows)
    return tmp_path / "tasks"


def test_rows_of_every_kind_give_the_texts_that_models_see(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(KINDS)
    folder = tmp_path / "tasks"
    pairs: list[dict[str, Any]] = [
        {"one": "A boat.", "other": "It floats.", "label": "yes", "note": "never read"},
        {"one": "A stone.", "other": None, "label": "no"},
        {"one": "Same.", "other": "Same.", "label": "no"},
    ]
    write(folder, "pairs", "train", pairs)
    write(folder, "pairs", "validation", [{"one": "Scored.", "other": "Scored.", "label": "no"}])
    write(folder, "tags", "train", [{"words": ["The", "fox"], "tags": ["D", "N"]}])
    exam = {"question": "Who?", "answers": ["He.", "She."], "label": 1}
    write(folder, "exam", "train", [exam])
    assert texts(folder, tmp_path / "mine.yaml") == [
        *("A boat.", "So: It floats.", "Same.", "So: Same."),
        "The fox",
        *("Who?", "He.", "She."),
    ]


def test_rows_that_are_not_trained_on_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "tasks: {boats: {text: text, metric: accuracy, most_rows: 5}}\n"
    )
    rows = [{"text": f"boat {n}", "label": n % 2} for n in range(50)]
    write(tmp_path / "tasks", "boats", "train", rows)
    found = texts(tmp_path / "tasks", tmp_path / "mine.yaml")
    assert len(found) == 5
    assert found == texts(tmp_path / "tasks", tmp_path / "mine.yaml")


@pytest.mark.parametrize("scored", ["folds: 5", "scored: {boats: train}", "scored: {boats: copy}"])
def test_training_rows_that_are_scored_are_refused(tmp_path: Path, scored: str) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"tasks: {{boats: {{text: text, metric: accuracy, {scored}}}}}\n"
    )
    for split in ("train", "copy"):
        write(tmp_path / "tasks", "boats", split, [{"text": "a boat", "label": n} for n in (0, 1)])
    with pytest.raises(InputError, match=r"boats/train\.jsonl is trained on and scored: leave"):
        texts(tmp_path / "tasks", tmp_path / "mine.yaml")


def test_pairs_that_nothing_is_fine_tuned_on_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "tasks:\n  boats: {text: text, metric: accuracy}\n  pairs: {kind: minimal-pairs}\n"
    )
    write(tmp_path / "tasks", "boats", "train", [{"text": "a boat", "label": 0}])
    pair = {"sentence_good": "boats sink", "sentence_bad": "boats sinks"}
    write(tmp_path / "tasks", "pairs", "train", [pair])
    assert texts(tmp_path / "tasks", tmp_path / "mine.yaml") == ["a boat"]
    (tmp_path / "mine.yaml").write_text("tasks: {pairs: {kind: minimal-pairs}}\n")
    with pytest.raises(InputError, match="suite mine has no task to learn texts from"):
        texts(tmp_path / "tasks", tmp_path / "mine.yaml")


def test_the_folder_of_a_suite_may_be_called_as_a_source_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("tasks: {boats: {text: text, metric: accuracy}}\n")
    write(tmp_path / "python-docs", "boats", "train", [{"text": "a boat", "label": 0}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("python-docs", "~/python-docs"):
        assert texts(Path(folder), Path("mine.yaml")) == ["a boat"]


def test_what_a_suite_decides_cannot_be_set() -> None:
    source = {"path": "tasks", "suite": "mine.yaml", "text_field": "body"}
    with pytest.raises(ValueError, match="a suite says what its texts are: leave text_field out"):
        DataConfig.model_validate({"sources": [source]})


def test_a_corpus_of_tasks_names_them_and_notices_that_they_have_changed(
    tmp_path: Path, tasks: Path
) -> None:
    source = {"path": str(tasks), "suite": str(tmp_path / "mine.yaml")}
    data = DataConfig.model_validate({"sources": [source], "row_length": 32})
    tokenizer = TokenizerConfig(vocab_size=200, train_words=1000)
    corpus = prepare(data, tokenizer, tmp_path / "corpus", SILENT)
    (listed,) = corpus.manifest["sources"]
    assert listed["name"] == "tasks of mine"
    assert [part["name"] for part in listed["parts"]] == ["boats, train"]
    assert changed_files(corpus, data) == []
    rows = [{"text": text, "label": n % 2} for n, text in enumerate(documents(60))]
    write(tasks, "boats", "validation", rows)
    assert changed_files(corpus, data) == []
    write(tasks, "boats", "train", rows[:50])
    assert changed_files(corpus, data) == ["boats, train"]


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save_model(tmp_path / "bert", "bert")


def heldout_and_rows(corpus: Corpus) -> str:
    """All text of a corpus, as it was tokenized."""
    ids = corpus.read(np.arange(corpus.rows)).reshape(-1).tolist()
    held = gzip.decompress((corpus.path / "heldout.jsonl.gz").read_bytes()).decode()
    return str(corpus.tokenizer.decode(ids)) + held


def test_the_command_adapts_to_the_tasks_alone_and_continues(
    tmp_path: Path, tasks: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str | Path] = ["--task-adaptive", "mine.yaml", "--tasks-data", tasks]
    words += ["--budget", "2updates", "--out", "run"]
    done = command("adapt", bert, *SMALL, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "training texts of boats, without their labels" in " ".join(done.stderr.split())
    text = heldout_and_rows(Corpus(tmp_path / "run/corpus")).replace(" ", "")
    assert "trained" in text
    for never in ("scored", "tested", "secret"):
        assert never not in text
    monkeypatch.chdir(tmp_path)
    updates = (tmp_path / "run/metrics.jsonl").read_bytes()
    assert updates
    given = {"task_adaptive": "mine.yaml", "tasks_data": tasks, "out": "run"}
    again = crammed.adapt(bert, SMALL, **given)  # type: ignore[arg-type]
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == updates
    assert again.result["updates"] == 2


def test_from_python_they_are_mixed_with_other_text(
    tmp_path: Path, tasks: Path, bert: Path
) -> None:
    run = crammed.adapt(
        bert,
        SMALL,
        data=write_jsonl(tmp_path / "text.jsonl", documents(300, seed=4)),
        task_adaptive=tmp_path / "mine.yaml",
        tasks_data=tasks,
        budget="2updates",
        out=tmp_path / "run",
    )
    assert run.summary is not None
    assert [*run.summary.heldout_by_source] == ["text.jsonl", "tasks of mine"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task_adaptive": "mine.yaml"}, "suite mine.yaml needs the folder of its tasks: --tasks"),
        ({"tasks_data": "tasks"}, "--tasks-data needs the suite whose texts to learn from: --task"),
        (
            {"task_adaptive": "mine.yaml", "tasks_data": "tasks", "corpus": "corpus"},
            "--task-adaptive needs text that is not yet prepared: name it with --data, not",
        ),
        ({"task_adaptive": "blimp", "tasks_data": "tasks"}, "blimp"),
        ({"task_adaptive": "mine.yaml", "tasks_data": "nowhere"}, "nowhere is not a folder"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path,
    tasks: Path,
    bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        crammed.adapt(bert, SMALL, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()
