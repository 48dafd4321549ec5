"""The page of a decision between several ways to an encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.report.decision import write_decision


def test_a_model_of_the_same_name_is_not_linked_to_the_report_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "adapted").mkdir(parents=True)
    (tmp_path / "out" / "adapted" / "report.html").touch()
    models = {"as it is": "somebody/adapted", "adapted": "out/adapted"}
    page = write_decision({}, models, Path("out/report.html")).read_text("utf-8")
    assert "<td>somebody/adapted</td>" in page
    assert '<td><a href="adapted/report.html">out/adapted</a></td>' in page
