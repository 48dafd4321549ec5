from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.evaluation.folder import read_told
from crammed.evaluation.scores.judged import Judged
from crammed.files.writing import write_json
from crammed.tasks.rows import Rows, Texts
from crammed.tasks.task import Task

LABELS = ("ham", "spam")
OUTPUTS = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]])


def judged(kind: Any, labels: Any, outputs: Any = OUTPUTS, names: Any = LABELS) -> Judged:
    metric = {"regression": "pearson", "multi-label": "micro-f1"}.get(kind, "accuracy")
    task = Task.model_validate({"name": "mail", "text": "text", "metric": metric, "kind": kind})
    texts: list[Texts] = [(f"row {number}\n" + 300 * "x",) for number in range(4)]
    rows = Rows(texts, np.array(labels, np.float32))
    return Judged(task, names, "mail", rows, np.asarray(outputs))


def test_the_surest_mistakes_come_first_and_are_cut() -> None:
    told = judged("classification", [0, 1, 1, 1]).told()
    assert told["labels"] == LABELS
    assert told["confusion"] == [[1, 0], [2, 1]]
    assert [mistake[1:3] for mistake in told["mistakes"]] == [("spam", "ham")] * 2
    first, second = (mistake[0] for mistake in told["mistakes"])
    assert (first[:7], second[:7]) == ("row 2 x", "row 3 x")
    assert len(first) == 203
    assert told["mistakes"][0][3] == pytest.approx(1 / (1 + np.exp(-3.0)))


def test_a_mistaken_choice_is_shown_with_all_its_answers() -> None:
    task = Task.model_validate(
        {"name": "q", "kind": "choice", "text": "t", "choices": "ends", "metric": "accuracy"}
    )
    texts: list[Texts] = [("why", end) for end in ("a", "b", "c", "d")]
    rows = Rows(texts, np.array([0, 0], np.float32), 2)
    outputs = np.array([[2.0, 0.0], [0.0, 3.0]])
    (mistake,) = Judged(task, ("0", "1"), "q", rows, outputs).mistakes()
    assert mistake[:3] == ("why | c | d", "0", "1")


@pytest.mark.parametrize(
    ("kind", "labels", "outputs", "names"),
    [
        ("regression", [1, 2, 3, 4], np.ones((4, 1)), ()),
        ("multi-label", [[0, 1]] * 4, OUTPUTS, LABELS),
        ("tokens", [-1, 1, 1, 0], OUTPUTS, [str(number) for number in range(31)]),
    ],
)
def test_kinds_without_a_matrix_have_none(kind: str, labels: Any, outputs: Any, names: Any) -> None:
    told = judged(kind, labels, outputs, names).told()
    assert (told["confusion"], told["mistakes"]) == ([], [])


def test_what_is_told_is_read_back_or_refused(tmp_path: Path) -> None:
    assert read_told(tmp_path, "mine", "mail") is None
    told = judged("classification", [0, 1, 1, 1]).told()
    write_json(tmp_path / "told" / "mine" / "mail.json", told)
    found = read_told(tmp_path, "mine", "mail")
    assert found is not None
    assert found.confusion == told["confusion"]
    write_json(tmp_path / "told" / "mine" / "mail.json", {**told, "confusion": [[1, 2]]})
    with pytest.raises(InputError, match=r"mail\.json: confusion must have a line and a column"):
        read_told(tmp_path, "mine", "mail")
