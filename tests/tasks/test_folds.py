from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.tasks.folds import parts_of
from crammed.tasks.rows import TaskData
from support.tasks import read_mine, suite_of


def read(folder: Path, rows: list[dict[str, Any]], **fields: Any) -> TaskData:
    return read_mine(folder, suite_of(**{"folds": 3, **fields}), train=rows)


def test_every_row_is_in_one_part_and_every_class_in_all(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": "rare" if n < 3 else "usual"} for n in range(20)]
    data = read(tmp_path, rows)
    assert data.scored == {"mine": data.train}
    parts = [*parts_of(data)]
    own = [text for part in parts for text in part.rows.texts]
    assert sorted(own) == sorted(data.train.texts)
    for part in parts:
        assert not {*part.train.texts} & {*part.rows.texts}
        assert len(part.train) + len(part.rows) == 20
        assert 6 <= len(part.rows) <= 7
        assert list(part.rows.labels).count(0) == 1
        assert list(part.rows.labels) == list(data.train.labels[part.places])
    again = [part.rows.texts for part in parts_of(read(tmp_path, rows))]
    assert again == [part.rows.texts for part in parts]
    assert read(tmp_path, rows, folds=4).sha256 != data.sha256


def test_a_part_has_whole_groups_answers_and_sentences(tmp_path: Path) -> None:
    rows: list[dict[str, Any]]
    rows = [{"text": f"t{n}", "label": n % 2, "of": n // 3} for n in range(18)]
    for part in parts_of(read(tmp_path, rows, group="{of}")):
        assert not {*part.rows.groups} & {*part.train.groups}
    rows = [{"text": f"t{n}", "label": n % 2, "ends": [f"a{n}", f"b{n}"]} for n in range(9)]
    for part in parts_of(read(tmp_path, rows, kind="choice", choices="ends")):
        assert [text[1] for text in part.rows.texts[::2]] == [
            text[1].replace("b", "a") for text in part.rows.texts[1::2]
        ]
    rows = [{"text": ["w"] * (n + 1), "label": [str(n % 2)] * (n + 1)} for n in range(6)]
    for part in parts_of(read(tmp_path, rows, kind="tokens")):
        counts = [len(words) for words in part.rows.texts]
        wanted = [(count - 1) % 2 for count in counts for _ in range(count)]
        assert list(part.rows.labels) == wanted


def test_folds_that_cannot_be_are_refused(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": n % 2} for n in range(2)]
    with pytest.raises(InputError, match=r"train\.jsonl: 2 rows are too few for 3 folds"):
        read(tmp_path, rows)
    with pytest.raises(ValueError, match="leave out scored and test"):
        read(tmp_path, rows, scored={"mine": "validation"})


def test_a_task_without_folds_has_no_parts(tmp_path: Path) -> None:
    data = read(tmp_path, [{"text": f"t{n}", "label": n % 2} for n in range(4)])
    assert not [*parts_of(TaskData(data.train, data.scored, {}, (), ""))]
    assert np.isfinite(data.train.labels).all()
