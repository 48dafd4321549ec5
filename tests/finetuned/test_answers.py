"""Rows are written with what a model says of them, to a terminal or a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from crammed.errors import InputError
from crammed.finetuned.output import print_rows, write_rows
from crammed.terminal.progress import SILENT


def test_a_table_of_predictions_keeps_any_end_of_line(tmp_path: Path) -> None:
    texts = ["one\rtwo", "one\ntwo", "one\r\ntwo", "plain"]
    rows = [({"text": text}, {"predicted": "x"}) for text in texts]
    write_rows(tmp_path / "out.csv", iter(rows), SILENT)
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts
    assert (tmp_path / "out.csv").read_bytes().startswith(b"text,predicted\n")


def test_rows_cannot_act_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"text": "a\x1b[31m\x9b31m\u202e\ud800 ü"}
    print_rows([(row, {"predicted": "x"})])
    printed = capsys.readouterr().out
    assert printed[:-1].isprintable()
    assert json.loads(printed) == {**row, "predicted": "x"}
    assert "ü" in printed
    for name in ("out.jsonl", "out.csv"):
        write_rows(tmp_path / name, [(row, {"predicted": "x"})], SILENT)
        assert (tmp_path / name).read_text("utf-8")


def test_what_is_no_json_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([({"text": "NaN", "score": float("nan")}, {"predicted": "x"})])
    assert capsys.readouterr().out == '{"text": "NaN", "score": null, "predicted": "x"}\n'


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_predictions_replace_no_column(tmp_path: Path, name: str) -> None:
    taken = "probability of x" if name.endswith("csv") else "probabilities"
    rows = [({"text": "a", taken: 1}, {"predicted": "x", "probabilities": {"x": 1.0}})]
    with pytest.raises(InputError, match=f"a column '{taken}', which predictions would replace"):
        write_rows(tmp_path / name, rows, SILENT)
    assert not [*tmp_path.iterdir()]


def test_no_column_of_a_later_row_is_lost(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"text": "a"}, {"predicted": "x"}),
        ({"text": "b", "id": 7}, {"predicted": "y"}),
    ]
    with pytest.raises(InputError, match="no column 'id', which a later row has: write"):
        write_rows(tmp_path / "out.csv", rows, SILENT)
    assert not [*tmp_path.iterdir()]
    write_rows(tmp_path / "out.jsonl", rows, SILENT)
    assert '"id": 7' in (tmp_path / "out.jsonl").read_text()
