"""Predictions of a fine-tuned model: which rows are refused, and how tables hold them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.config import ComputeConfig
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.finetuned.folder import DESCRIPTION, Description
from crammed.finetuned.output import write_rows
from crammed.finetuned.prediction import Predictor
from crammed.tasks.labels import list_of
from crammed.tasks.task import Task
from crammed.terminal.progress import SILENT
from support.models import save_model
from support.text import write_rows as write_lines


def predictor_of(labels: tuple[str, ...], **fields: str) -> Predictor:
    """A predictor for a task, without a model."""
    task = Task.model_validate({"name": "a", "metric": "accuracy", **fields})
    fixed: dict[str, Any] = {"max_length": 16, "encoder": "e", "seed": 0, "scores": {}}
    nothing: Any = None
    return Predictor(Description(task=task, labels=labels, **fixed), nothing, nothing, nothing)


def test_rows_with_another_number_of_answers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Predictor, "outputs", lambda _, rows: (np.zeros((len(rows), rows.choices)), 0)
    )
    predictor = predictor_of(("0", "1"), kind="choice", text="q", choices="ends", group="g")
    rows = [{"q": "why", "ends": [*"ab"]}, {"q": "why", "ends": [*"abc"]}]  # without groups
    file = write_lines(tmp_path / "rows.jsonl", rows[:1])
    assert len([*predictor.predict(file)]) == 1
    for number, some in enumerate((rows[1:], rows), 1):
        with pytest.raises(InputError, match=f"line {number}: 3 answers, but other rows have 2"):
            [*predictor.predict(write_lines(file, some))]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_an_empty_cell_of_an_only_column_has_an_answer(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "outputs", lambda _, rows: (np.zeros((len(rows), 2)), 0))
    predictor = predictor_of(("no", "yes"), text="review")
    (tmp_path / f"new{suffix}").write_text("review\ngood\n\nbad\n")
    rows = [record["review"] for record, _ in predictor.predict(tmp_path / f"new{suffix}")]
    assert rows == ["good", "", "bad"]


def test_a_class_of_truncated_words_that_is_no_label_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "bert", "AutoModelForTokenClassification")
    described = predictor_of(("x", "y"), kind="tokens", text="words").description
    cpu = ComputeConfig(device="cpu")
    for majority in (1, 2, -1):
        told = {**described.model_dump(mode="json"), "majority": majority}
        write_json(folder / DESCRIPTION, told)
        if majority == 1:
            assert Predictor.load(folder, cpu).description.majority == 1
            continue
        with pytest.raises(InputError, match=r"task\.json is damaged: fine-tune again"):
            Predictor.load(folder, cpu)


@pytest.mark.parametrize(
    ("answer", "separator"),
    [
        ({"predicted": ["new york", "paris"], "probabilities": {"paris": 0.9}}, ","),
        ({"predicted": ["B-PER", "O"]}, None),
    ],
)
def test_a_task_can_read_what_a_table_of_predictions_holds(
    tmp_path: Path, answer: dict[str, Any], separator: str | None
) -> None:
    write_rows(tmp_path / "out.csv", [({"text": "a"}, answer)], SILENT)
    with (tmp_path / "out.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert list_of(line["predicted"], separator) == answer["predicted"]
