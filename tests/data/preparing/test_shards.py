"""A stage counts as done only once the disk has what it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from crammed.data import shards
from crammed.data.preparing.driver import prepare
from crammed.files import writing
from crammed.terminal.progress import SILENT
from support.text import documents, tiny, write_jsonl


def test_what_a_stage_wrote_is_on_the_disk_before_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    late: list[str] = []
    stages: list[str] = []

    def sync_all(files: Iterable[Path]) -> None:
        synced.update(files)

    def write_json(mark: Path, values: object) -> None:
        name, _, stage = mark.name.removesuffix(".json").partition(".")
        if stage not in ("", "hashes"):
            stages.append(stage)
            written = {f for f in mark.parent.glob(f"{name}.*") if f.suffix != ".json"}
            if stage == "pack":
                written.add(mark.parent / "corpus" / f"rows-{name}.bin")
            late.extend(f"{stage}: {file.name}" for file in written - synced)
        writing.write_json(mark, values)

    monkeypatch.setattr(shards, "sync_all", sync_all)
    monkeypatch.setattr(shards, "write_json", write_json)
    source = write_jsonl(tmp_path / "text.jsonl", documents(200))
    config = tiny(data={"sources": [str(source)]})
    prepare(config.data, config.tokenizer, tmp_path / "corpus", SILENT)
    assert stages == ["clean", "select", "pack"]
    assert late == []


def test_damaged_results_of_a_stage_are_made_again(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "text.jsonl", documents(200))
    config = tiny(data={"sources": [str(source)]})

    def made(name: str) -> str:
        work = tmp_path / "work"
        return prepare(config.data, config.tokenizer, tmp_path / name, SILENT, work=work).sha256

    whole = made("first")
    for number, file in enumerate(sorted((tmp_path / "work" / "parts").rglob("*.documents.arrow"))):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert made(f"again-{number}") == whole
        assert file.read_bytes() != content
    (mark,) = (tmp_path / "work" / "parts").rglob("*.clean.json")
    mark.write_text(mark.read_text().replace("documents", "docements"))
    assert made("last") == whole
    assert "docements" not in mark.read_text()


def test_a_stage_that_has_begun_costs_none_that_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "text.jsonl", documents(200))
    config = tiny(data={"sources": [str(source)]})

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def selected() -> dict[Path, int]:
        marks = tmp_path.rglob("*.select.json")
        return {mark: mark.stat().st_mtime_ns for mark in marks}

    with monkeypatch.context() as patch:
        # The files of the selection are written by then.
        patch.setattr("crammed.data.preparing.pack.packing_job.Packed", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(config.data, config.tokenizer, tmp_path / "out", SILENT)
    before = selected()
    assert before
    with monkeypatch.context() as patch:
        patch.setattr("crammed.data.preparing.driver.publish", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(config.data, config.tokenizer, tmp_path / "out", SILENT)
    assert selected() == before
