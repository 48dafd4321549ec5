"""`tools/test_all.py` keeps what its steps found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_step_counts_without_the_environments_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("test_all")
    step = tool.Step("long tests", [sys.executable, "-c", "print('7 passed in 1s')"])
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "OUTPUT", tmp_path / "output.txt")
    monkeypatch.setattr(tool, "steps", lambda: iter([step]))
    monkeypatch.setattr(tool, "commit", lambda: "abc")
    with pytest.raises(SystemExit) as ended:
        tool.main(["long tests"])
    assert ended.value.code == 0
    written = (tmp_path / "output.txt").read_text("utf-8")
    assert "oldest    not made" in written
    assert "long tests: passed" in written
    assert "  7 passed" in written
    with pytest.raises(SystemExit, match="error: no step short tests: choose from long tests"):
        tool.main(["short tests"])
