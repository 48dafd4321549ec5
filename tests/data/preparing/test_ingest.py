"""Reading sources into cleaned shards: copies of files, and files that change meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.read import ingest
from crammed.data.preparing.read.ingest import CleanedText, read_and_clean
from crammed.data.preparing.read.source import FilePart, SourceChanged, open_sources
from crammed.errors import InputError
from crammed.machine.engine import Engine, Item, Result
from crammed.terminal.progress import SILENT
from support.text import documents, write_jsonl


class _ThisProcess:
    """Does each job when its result is asked for."""

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        return map(function, jobs)


class _Late:
    """Begins no job before all are drawn, as many busy workers would."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        self.jobs = list(jobs)
        return map(function, self.jobs)


def _read(folder: Path, work: Path, engine: Engine | None = None, **data: Any) -> CleanedText:
    config = DataConfig.model_validate({"sources": [str(folder)], **data})
    return read_and_clean(open_sources(config), config, work, engine or _ThisProcess(), SILENT)


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same file in three folders, and another one; several shards each."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5_000)
    folder = tmp_path / "texts"
    for name, seed in (("a", 0), ("b", 0), ("c", 1), ("d", 0)):
        (folder / name).mkdir(parents=True)
        write_jsonl(folder / name / "same.jsonl", documents(150, seed))
    return folder


def test_copies_of_a_file_are_cleaned_once_by_busy_workers(copies: Path, tmp_path: Path) -> None:
    engine = _Late()
    found = _read(copies, tmp_path / "late", engine)
    paths = [job.shard for job in engine.jobs]
    assert len(set(paths)) == len(paths) > 4
    at_once = _read(copies, tmp_path / "at-once")
    assert len(found.shards) == 2 * len(paths)
    assert [shard.cleaned for shard in found.shards] == [s.cleaned for s in at_once.shards]
    assert [shard.path.name for shard in found.shards] == [s.path.name for s in at_once.shards]


def test_damaged_copies_of_a_file_are_cleaned_once_by_busy_workers(
    copies: Path, tmp_path: Path
) -> None:
    for file in copies.glob("[ab]/*"):
        file.write_text(file.read_text() + "not json\n")
    engine = _Late()
    found = _read(copies, tmp_path / "work", engine, unreadable="skip")
    paths = [job.shard for job in engine.jobs]
    assert len(set(paths)) == len(paths)
    assert [each["part"] for each in found.skipped] == ["same.jsonl"] * 2
    assert {shard.part for shard in found.shards} == {"same.jsonl"}


def _meddle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once the first document of a file has been read."""
    real = FilePart.documents

    def documents_of(part: FilePart) -> Iterator[str]:
        for number, text in enumerate(real(part)):
            if number == 1:
                act()
            yield text

    monkeypatch.setattr(FilePart, "documents", documents_of)


def _change_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, file: Path, content: bytes, work: Path, **changes: Any
) -> None:
    """Read a file that gets other content on the way, and then its own back."""
    own = file.read_bytes()
    with monkeypatch.context() as patch:
        _meddle(patch, lambda: file.write_bytes(content))
        with pytest.raises(SourceChanged, match=rf"^{file.name} changed while it was read: wait"):
            _read(file, work, **changes)
    file.write_bytes(own)


@pytest.mark.parametrize("unreadable", ["stop", "skip"])
@pytest.mark.parametrize("more", ['{"text": "One more."}\n', '{"text": "half a li'])
def test_a_file_that_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str, more: str
) -> None:
    file = write_jsonl(tmp_path / "log.jsonl", documents(9_000))
    grown = file.read_bytes() + more.encode()
    _change_while_it_is_read(monkeypatch, file, grown, tmp_path / "work", unreadable=unreadable)
    assert sum(s.cleaned.documents for s in _read(file, tmp_path / "work").shards) == 9_000


def test_shards_of_a_file_that_changed_are_not_used_when_it_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5_000)
    file = write_jsonl(tmp_path / "a.jsonl", documents(9_000))
    other = file.read_bytes().replace(b"sailor", b"tailor")
    _change_while_it_is_read(monkeypatch, file, other, tmp_path / "work")
    found = _read(file, tmp_path / "work")
    assert not any("tailor" in text for s in found.shards for text in shards.documents(s.path))


def test_a_file_that_was_only_touched_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", documents(100))
    _meddle(monkeypatch, lambda: os.utime(file, (1, 1)))
    assert sum(s.cleaned.documents for s in _read(file, tmp_path / "work").shards) == 100


def test_a_part_that_had_been_begun_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5_000)
    file = write_jsonl(tmp_path / "a.jsonl", documents(300))
    cut = ingest.cut_into_shards

    def failing(texts: Iterable[str], most: int | None) -> Iterator[list[str]]:
        for number, each in enumerate(cut(texts, most)):
            if number == 3:
                raise InputError("the disk is full")
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "cut_into_shards", failing)
        with pytest.raises(InputError, match="full"):
            _read(file, tmp_path / "work")
    engine = _Late()
    found = _read(file, tmp_path / "work", engine)
    assert len(engine.jobs) == len(found.shards) - 3
