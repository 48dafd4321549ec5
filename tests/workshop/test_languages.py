"""What gathers text in many languages, and shows what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gather_text
import language_tables
import layout

ROOT = Path(__file__).resolve().parents[2]


def test_pages_written_in_english_are_found_beside_their_translations(tmp_path: Path) -> None:
    for language, word in (("C", "Save"), ("de", "Sichern")):
        file = tmp_path / "help" / language / "index.page"
        file.parent.mkdir(parents=True)
        file.write_text(f"<page><p>{word}</p></page>", "utf-8")
    found = {code: "".join(gather_text._lines(tmp_path, code)) for code in ("en-US", "de", "ko")}
    assert found == {"en-US": "Save", "de": "Sichern", "ko": ""}


def test_lines_that_nobody_translated_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(package: str, folder: Path) -> str | None:
        if package != "gnome-user-docs":
            return None
        (folder / "ko").mkdir()
        page = "<page><p>Save the file</p><p>PDF 저장</p></page>"
        (folder / "ko" / "index.page").write_text(page, "utf-8")
        return "1.0"

    monkeypatch.setattr(gather_text, "_unpack", unpack)
    for ascii_lines, expected in ((True, "Save the file\nPDF 저장"), (False, "PDF 저장")):
        (record,), (found,) = gather_text.gather("ko", ascii_lines=ascii_lines)
        assert record["text"] == expected
        assert (found["version"], found["characters"]) == ("1.0", len(expected))


def test_of_a_language_in_several_records_the_last_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "RECORDS", tmp_path)
    for record, code, rank in (("one", "ko", 1), ("one", "de", 2), ("two", "ko", 3)):
        gap = {"before": "", "word": "x", "after": "", "guesses": [["y", 0.5]], "rank": rank}
        lost = {"crammed": 0.0, "crammed-2022": 0.5}
        (tmp_path / record).mkdir(exist_ok=True)
        file = tmp_path / record / f"{code}.json"
        file.write_text(json.dumps({"lost": lost, "gaps": [gap]}), "utf-8")
    german, korean = language_tables.gaps_table("one", "two").splitlines()[2:]
    assert german.split(" | ")[::5] == ["| German", "y, 2 |"]
    assert korean.split(" | ")[::5] == ["| Korean", "y, 3 |"]
