"""Which files of a folder or a glob are read, and what is said of the others."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from crammed.data.preparing.read.source import ignored_files
from support.samples import PAGE, opened, read, refusal, tarred

LATIN = "Ein sch\xf6ner Satz.".encode("latin-1")


def test_text_in_another_encoding_needs_no_suffix_to_be_named(tmp_path: Path) -> None:
    """As in 20 Newsgroups, whose files are named by numbers."""
    folder = tmp_path / "news"
    folder.mkdir()
    for name, content in (("51060", b"One."), ("51061", LATIN), ("51062", b"\xff\xd8\1")):
        (folder / name).write_bytes(content)
    (folder / "program").write_bytes(b"\x7fELF\0")
    (tmp_path / "news.tar").write_bytes(tarred({f.name: f.read_bytes() for f in folder.iterdir()}))
    for source in (folder, tmp_path / "news.tar"):
        said = refusal(source)
        assert "51061, line 1: not UTF-8 text" in said
        assert "iconv -f WINDOWS-1252 -t UTF-8" in said
    assert read(tmp_path / "news.tar", unreadable="skip") == ["One."]
    assert [part.name for part in opened(folder).parts] == ["51060", "51061"]
    assert ignored_files(opened(folder).ignored).endswith(": 2 without a suffix")
    page = PAGE.replace("<body>", "<head><meta charset=latin-1></head><body>")
    (folder / "51061").write_bytes(page.encode("latin-1"))
    assert "sch\xf6n" in read(folder)[1], "a page may have any encoding"


def test_files_of_other_formats_that_a_glob_matches_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("a.txt", "a.png", "deep/b.txt", "deep/b.png", "deep/er/c.png"):
        (tmp_path / name).write_text(name)
    for pattern, count in (("*", 3), ("*.*", 1), ("**/*", 3), ("**", 3), ("deep/*", 2)):
        assert opened(tmp_path / pattern).ignored == {".png": count}
    assert opened(tmp_path / "*.txt").ignored == {}
    (tmp_path / "made" / "parts").mkdir(parents=True)
    (tmp_path / "made" / "lock").touch()
    (tmp_path / "made" / "held.jsonl").write_text('{"text": "Held out."}\n')
    assert read(tmp_path / "*") == ["a.txt", "deep/b.txt"]
    assert opened(tmp_path / "*").ignored == {".png": 3, "working folder (made)": 1}


@pytest.mark.parametrize("pattern", ["", "*.json"])
def test_objects_that_span_lines_are_to_be_converted(tmp_path: Path, pattern: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text('{\n "text": "One."\n}\n')
    said = refusal(tmp_path / pattern)
    assert "no file of a known format: its .json files hold neither an object on each line" in said
    assert said.endswith("convert them with jq -c . FILES > all.jsonl")


def _lock(monkeypatch: pytest.MonkeyPatch, locked: Path) -> None:
    """Refuse to list a folder, since the tests may be run by root, whom nothing is refused."""
    for name in ("listdir", "scandir"):
        whole = getattr(os, name)

        def refusing(path: Any = ".", whole: Any = whole) -> Any:
            if Path(path) == locked:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return whole(path)

        monkeypatch.setattr(os, name, refusing)


@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.txt"])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "texts" / "private"
    locked.mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("One.")
    source = tmp_path / "texts" / pattern
    _lock(monkeypatch, locked)
    fault = f"{locked} cannot be read: Permission denied; leave such folders out with data.unread"
    assert fault in refusal(source)
    assert read(source, unreadable="skip") == ["One."]
    found = opened(source, unreadable="skip")
    assert found.ignored == {f"folder that cannot be read ({locked})": 1}
    assert f"{locked} cannot be read: Permission denied" in refusal(locked, unreadable="skip")
    locked.rename(tmp_path / "texts" / "lost+found")
    _lock(monkeypatch, tmp_path / "texts" / "lost+found")
    assert read(source) == ["One."]


def test_pages_are_text_beside_fewer_files_of_records(tmp_path: Path) -> None:
    """As in a website that was built with an index to search it."""
    (tmp_path / "search_index.json").write_text('{"config": {}, "docs": []}')
    (tmp_path / "a.html").write_text(PAGE)
    assert "no field 'text'" in refusal(tmp_path)
    (tmp_path / "b.html").write_text(PAGE)
    assert [part.name for part in opened(tmp_path).parts] == ["a.html", "b.html"]
    assert opened(tmp_path).without_field == ("search_index.json",)
    (tmp_path / "rows.jsonl").write_text('{"text": "Row."}\n')
    (tmp_path / "README.md").write_text("About it.")
    names = [part.name for part in opened(tmp_path).parts]
    assert names == ["a.html", "b.html", "rows.jsonl"]
    (tmp_path / "b.html").unlink()
    assert read(tmp_path) == ["Row."]
    ignored = opened(tmp_path).ignored
    assert ignored == {".html": 1, ".md": 1}
    assert ignored_files(ignored).endswith("to read them, name them as FOLDER/**/*.html")
    assert [part.name for part in opened(tmp_path / "**/*.html").parts] == ["a.html"]


@pytest.mark.parametrize("suffix", [".md", ".rst"])
def test_how_to_read_markup_beside_tables_is_said_if_it_is_no_read_me(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "index.csv").write_text("text\nCell.\n")
    (tmp_path / f"README{suffix}").write_text("About it.")
    assert ignored_files(opened(tmp_path).ignored) == f"ignoring files of other formats: 1 {suffix}"
    (tmp_path / f"page{suffix}").write_text("Page.")
    said = ignored_files(opened(tmp_path).ignored)
    assert f": 2 {suffix}; {suffix} files beside records are taken for descriptions" in said
    assert said.endswith(f"to read them, name them as FOLDER/**/*{suffix}")
    assert len(read(tmp_path / f"**/*{suffix}")) == 2
