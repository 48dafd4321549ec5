from __future__ import annotations

from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.files import read_json, write_json, write_text


def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    write_json(tmp_path / "results" / "new" / "x.json", {"a": 1})
    assert read_json(tmp_path / "results" / "new" / "x.json") == {"a": 1}
    assert [file.name for file in (tmp_path / "results" / "new").iterdir()] == ["x.json"]


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    (tmp_path / "folder").mkdir()
    for place in ("results/x.json", "results/new/x.json", "folder"):
        with pytest.raises(InputError, match=f"cannot write .*{place}: .*; choose another --out"):
            write_text(tmp_path / place, "a")
