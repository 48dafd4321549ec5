"""Names of files and folders that cannot be made are refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import crammed

TEXT = ["--data", "text.txt", "--budget", "1h"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare", *TEXT, "--out", ""], "--out is empty: name a file or a folder"),
        (["run", *TEXT, "--out="], "--out is empty: name a file or a folder"),
        (["export", "run", "--to", ""], "--to is empty: name a file or a folder"),
        (["prepare", *TEXT, "--out", "."], "exists already: choose another --out"),
        (["prepare", *TEXT, "--out", "/"], "/ exists already: choose another --out"),
        (["run", *TEXT, "--out", "."], "holds something that is not a run: choose another --out"),
        (["run", *TEXT, "--out", "/"], "/ holds something that is not a run: choose another --out"),
        (["export", "run", "--to", "."], "exists already: choose another --to"),
        (["export", "run", "--to", "/"], "/ exists already: choose another --to"),
        (["export", "run", "--to", "link"], "exists already: choose another --to"),
        (["report", "run", "--out", "/"], "cannot write /: it is a folder; choose another --out"),
        (["report", "run", "--out", "."], "cannot write .: it is a folder; choose another --out"),
        (
            ["evaluate", "run", "--data", "tasks", "--out", "run"],
            "cannot write run: it is a folder; choose another --out",
        ),
    ],
)
def test_places_are_checked_first(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "link").symlink_to(".")
    done = crammed(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "run", "text.txt"]
