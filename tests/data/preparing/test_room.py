"""What a preparation needs of the disk is told, and refused if there is too little."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crammed.config import DataConfig
from crammed.data.preparing.read.room import READ, made_folders, text_bytes
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from support.corpora import prepared_and_told, stopping
from support.text import documents, write_jsonl


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "text.jsonl", documents(300))


def _leave(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    usage = SimpleNamespace(total=10**12, free=int(free))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def _prepare(file: Path, *words: str, **more: Any) -> str:
    """Prepare `out`, and return what is shown."""
    source = {"path": str(file), **more}
    return prepared_and_told(file.with_name("out"), [source], "compute.workers=1", *words)[1]


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave(monkeypatch, 1.5 * file.stat().st_size)
    with pytest.raises(InputError) as caught:
        _prepare(file)
    words = r"takes about [\d.]+ kB of disk at \S+, and [\d.]+ kB are free: .* prepare\), or read"
    assert re.search(words, str(caught.value))
    assert list(file.parent.iterdir()) == [file]
    _leave(monkeypatch, 3 * file.stat().st_size)
    shown = _prepare(file, max_characters=20_000)
    assert re.search(r"disk  about 4\d(\.\d)? kB at \S+ until the corpus is complete", shown)


def test_what_is_done_is_not_counted_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _leave(monkeypatch, 2.5 * file.stat().st_size)
    with stopping("write_manifest"):
        _prepare(file)
    _leave(monkeypatch, file.stat().st_size / 4)
    _prepare(file)


def test_what_was_begun_otherwise_is_removed_and_hides_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave(monkeypatch, 1e9)
    folder = file.with_name(".out.preparing")
    (folder / "made-of-wood").mkdir(parents=True)
    begun = set[Path]()
    for words in ((), ("tokenizer.vocab_size=300",)):
        with stopping("write_manifest"):
            _prepare(file, *words)
        (made,) = made_folders(folder)
        begun.add(made)
    assert len(begun) == 2
    assert (folder / "made-of-wood").exists()
    small = write_jsonl(file.with_name("small.jsonl"), documents(30, seed=1))
    size = small.stat().st_size
    told = re.search(r"disk  about ([\d.]+) kB at ", _prepare(small))
    assert told is not None
    assert float(told[1]) == pytest.approx(READ * size / 1000, rel=0.1), "what it takes to read it"


def test_the_lines_that_are_compared_take_room_of_their_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave(monkeypatch, 1e9)
    more = "data.clean.repeated.min_characters=20"
    sizes = []
    for words in ((), (more,)):
        told = re.search(r"disk  about ([\d.]+) kB at .*, 1 GB are free\n", _prepare(file, *words))
        assert told is not None
        sizes.append(float(told[1]))
        shutil.rmtree(file.with_name("out"))
    assert sizes[1] == pytest.approx(sizes[0] * 2.3 / 2, rel=0.01)


def test_text_is_told_from_what_surrounds_it(file: Path) -> None:
    texts = documents(300)
    size = sum(map(len, texts))
    packed = file.with_name("packed.jsonl.gz")
    lines = "".join(json.dumps({"text": text, "id": "x" * 300}) + "\n" for text in texts)
    packed.write_bytes(gzip.compress(lines.encode()))
    table = file.with_name("table.csv")
    table.write_text("text\nOne.\n")
    data = DataConfig.model_validate({"sources": [{"path": str(f)} for f in (file, packed, table)]})
    sizes, unknown = text_bytes(open_sources(data))
    assert sizes == [[pytest.approx(size)], [pytest.approx(size)], [0.0]]
    assert unknown == ["table.csv"]
