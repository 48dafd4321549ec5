"""What gathers text in many languages, makes tasks of it, and shows what was found."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.text import write_rows

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import gather_text  # noqa: E402
import language_tables  # noqa: E402
import language_tasks  # noqa: E402
import layout  # noqa: E402


def test_pages_written_in_english_are_found_beside_their_translations(tmp_path: Path) -> None:
    for language, word in (("C", "Save"), ("de", "Sichern")):
        file = tmp_path / "help" / language / "index.page"
        file.parent.mkdir(parents=True)
        file.write_text(f"<page><p>{word}</p></page>", "utf-8")
    found = {code: "".join(gather_text._lines(tmp_path, code)) for code in ("en-US", "de", "ko")}
    assert found == {"en-US": "Save", "de": "Sichern", "ko": ""}


def test_lines_that_nobody_translated_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(package: str, folder: Path) -> str | None:
        if package != "gnome-user-docs":
            return None
        (folder / "ko").mkdir()
        page = "<page><p>Save the file</p><p>PDF 저장</p></page>"
        (folder / "ko" / "index.page").write_text(page, "utf-8")
        return "1.0"

    monkeypatch.setattr(gather_text, "_unpack", unpack)
    for ascii_lines, expected in ((True, "Save the file\nPDF 저장"), (False, "PDF 저장")):
        (found,) = gather_text.gather("ko", tmp_path / "ko.jsonl", ascii_lines=ascii_lines)
        assert json.loads((tmp_path / "ko.jsonl").read_text("utf-8"))["text"] == expected
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
    german, korean = language_tables.gaps_table(["one", "two"]).splitlines()[2:]
    assert german.split(" | ")[::5] == ["| German", "y, 2 |"]
    assert korean.split(" | ")[::5] == ["| Korean", "y, 3 |"]


def test_tasks_keep_case_and_share_no_sentence_with_each_other_or_the_text(tmp_path: Path) -> None:
    pages = [
        {"package": package, "text": f"Öffnen Sie {package} Nummer {number} im Menü der Datei."}
        for package in ("gnucash", "evolution")
        for number in range(600)
    ]
    few = [
        {"package": "rare", "text": f"Öffnen Sie selten Nummer {n} im Menü der Datei."}
        for n in range(9)
    ]
    file = write_rows(tmp_path / "de.jsonl", (*pages, *few))
    language_tasks.make(file, tmp_path / "tasks")

    def read(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / "tasks" / f"{name}.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    train, scored = (read(f"package/{split}") for split in ("train", "validation"))
    texts = [{row["text"] for row in rows} for rows in (train, scored, read("text"))]
    assert all(texts)
    assert not any(first & second for first, second in combinations(texts, 2))
    for rows in (train, scored):
        by_label = [[row["text"] for row in rows if row["label"] == label] for label in (0, 1)]
        assert [len(own) for own in by_label] == [language_tasks.PER_PACKAGE] * 2
        assert all("evolution" in text for text in by_label[0])
    order = read("order/train")
    assert {row["label"] for row in order} == {0, 1}
    assert all("Nummer" in row["text"] and "Öffnen" not in row["text"] for row in order)
    assert all(row["text"].startswith("öffnen Sie") for row in order if row["label"] == 1)
    shuffled = [row["text"] for row in order if row["label"] == 0]
    assert sum(text.startswith("öffnen Sie") for text in shuffled) < len(shuffled) / 2
