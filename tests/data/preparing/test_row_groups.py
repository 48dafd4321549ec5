"""Large Parquet files are read by row groups, and give what reading them as a whole gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crammed.data import shards
from crammed.data.preparing.read.ingest import _Reader
from crammed.data.preparing.read.part import FilePart, SourceChanged
from crammed.data.preparing.read.reading_job import BlockJob, ReadJob, cut_by_characters
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.terminal.progress import SILENT
from support.reading import Cleaning, ThisProcess, config_of, read_source, texts_of
from support.text import documents


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5_000)


TEXTS = documents(300)
LAYOUTS = {
    "tiny": [1] * 300,
    "even": [50] * 6,
    "one": [300],
    "uneven": [0, 1, 250, 0, 0, 2, 47, 0],
    "no rows": [0, 0],
    "no groups": [],
}


def _write(file: Path, rows: list[int], texts: list[str] = TEXTS) -> Path:
    """A file with row groups of so many rows, and much else than text."""
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    at = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for count in rows:
            own = texts[at : at + count]
            ids = [os.urandom(20).hex() for _ in own]
            writer.write_table(pa.table({"id": ids, "text": own}, schema=schema))
            at += count
        writer.add_key_value_metadata({"note": "x" * 3_000})
    return file


def _damage(file: Path, group: int) -> None:
    """Overwrite the text of a row group, counted from 0."""
    column = pq.ParquetFile(file).metadata.row_group(group).column(1)
    begin = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    file.write_bytes(content)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_groups_give_what_the_whole_file_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    rows = LAYOUTS[layout]
    file = _write(tmp_path / "a.parquet", rows)
    engine = ThisProcess()
    cut = read_source(file, tmp_path / "cut", engine)
    assert all(isinstance(job, BlockJob) for job in engine.jobs)
    assert (len(engine.jobs) > 2) == (layout in ("tiny", "even"))
    monkeypatch.setattr(FilePart, "row_groups", lambda *_: None)
    engine = ThisProcess()
    whole = read_source(file, tmp_path / "whole", engine)
    assert [type(job) for job in engine.jobs] == [ReadJob]
    assert texts_of(cut) == texts_of(whole) == list(cut_by_characters(TEXTS[: sum(rows)], 5_000))
    assert max((len(block.path.name) for block in cut.blocks), default=0) < 20
    again = ThisProcess()
    assert texts_of(read_source(file, tmp_path / "cut", again)) == texts_of(whole)
    assert not [job for job in again.jobs if isinstance(job, BlockJob)], "nothing is read twice"


@pytest.mark.parametrize("most", [1, 4_000, 12_345])
def test_a_limit_ends_it_at_the_same_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    file = _write(tmp_path / "a.parquet", LAYOUTS["uneven"])
    sources = [{"path": str(file), "max_characters": most}]
    cut = read_source(file, tmp_path / "cut", sources=sources)
    monkeypatch.setattr(FilePart, "row_groups", lambda *_: None)
    assert texts_of(cut) == texts_of(read_source(file, tmp_path / "whole", sources=sources))


def test_no_block_of_a_huge_row_group_is_larger_than_others(tmp_path: Path) -> None:
    text = read_source(_write(tmp_path / "a.parquet", [300]), tmp_path / "work")
    longest = max(map(len, TEXTS))
    sizes = [sum(map(int, shards.lengths_of(block.path))) for block in text.blocks]
    assert len(sizes) > 10
    assert max(sizes) < 2_500 + longest


@pytest.mark.parametrize("large", [True, False])
def test_only_a_damaged_row_group_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if not large:
        monkeypatch.setattr(shards, "SHARD_CHARACTERS", 10_000_000)
    file = _write(tmp_path / "a.parquet", [50] * 6)
    _damage(file, 2)
    what = r"^a\.parquet, row group 3 cannot be read to its end: [^\n]+$"
    for _ in range(2):
        with pytest.raises(InputError, match=what):
            read_source(file, tmp_path / "work")
        text = read_source(file, tmp_path / "work", unreadable="skip")
        assert [each for some in texts_of(text) for each in some] == TEXTS[:100] + TEXTS[150:]
        (lost,) = text.lost
        assert (lost.records, text.skipped) == (50, [])
        assert lost.first.startswith("a.parquet, row group 3 cannot be read to its end: ")


def test_rows_before_the_damage_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"text": [f"{text} [{number}]" for number, text in enumerate(TEXTS)]})
    pages = {"data_page_size": 100, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, file, write_batch_size=10, **pages)
    content = bytearray(file.read_bytes())
    content[content.index(b"[285]")] = 0xFF  # which is not UTF-8
    file.write_bytes(content)
    text = read_source(file, tmp_path / "work", unreadable="skip")
    (lost,) = text.lost
    assert text.documents == 256  # whole batches of 128
    assert lost.records == 300 - 256
    assert str(lost).startswith("44 damaged records left out, the first: a.parquet, row group 1 ")


def test_messages_count_the_rows_of_the_file(tmp_path: Path) -> None:
    texts = [*TEXTS[:260], "x" * 3_000, *TEXTS[260:]]
    file = _write(tmp_path / "a.parquet", [50] * 7, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crammed.formats.lines.LARGEST", 2_000)
        with pytest.raises(InputError, match=r"^a\.parquet, row 261: a document of more than"):
            read_source(file, tmp_path / "work")


@pytest.mark.parametrize("field", ["body", "id"])
def test_what_holds_no_text_is_left_out_as_a_whole(tmp_path: Path, field: str) -> None:
    good = _write(tmp_path / "a.parquet", [150, 150])
    bad = tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": list(range(3_000)), "words": ["a"] * 3_000}), bad)
    sources = [str(good), {"path": str(bad), "text_field": field}]
    why = "no field 'body'" if field == "body" else "field 'id' is int"
    with pytest.raises(InputError, match=rf"^b\.parquet, row 1: {why}"):
        read_source(bad, tmp_path / "work", sources=sources)
    text = read_source(bad, tmp_path / "work", sources=sources, unreadable="skip")
    assert [each["part"] for each in text.skipped] == ["b.parquet"]
    assert (text.lost, text.documents) == ([], 300)


@pytest.mark.parametrize("touched", [True, False])
def test_a_file_that_changes_while_its_row_groups_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    file = _write(tmp_path / "a.parquet", [50] * 6)
    own = file.read_bytes()
    documents_of = FilePart.documents_of
    other = own.replace(b"\x00", b"\x01", 1)

    def meddling(part: FilePart, *more: Any) -> Iterator[str]:
        for number, text in enumerate(documents_of(part, *more)):
            if number == 1 and touched:
                os.utime(file, (1, 1))
            elif number == 1:
                file.write_bytes(other)
            yield text

    with monkeypatch.context() as patch:
        patch.setattr(FilePart, "documents_of", meddling)
        if touched:
            assert read_source(file, tmp_path / "work").documents == 300
            return
        with pytest.raises(SourceChanged, match=r"^a\.parquet changed while it was read: wait"):
            read_source(file, tmp_path / "work")
    file.write_bytes(own)
    assert texts_of(read_source(file, tmp_path / "work")) == list(cut_by_characters(TEXTS, 5_000))


@pytest.mark.parametrize("layout", ["even", "one"])
def test_it_is_continued_after_the_last_finished_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    file = _write(tmp_path / "a.parquet", LAYOUTS[layout])
    cleaned = Cleaning(monkeypatch, {8: InputError("the disk is full")}).names
    with pytest.raises(InputError, match="full"):
        read_source(file, tmp_path / "work", unreadable="skip")
    found = read_source(file, tmp_path / "work")
    assert cleaned.count("00000") == (1 if layout == "even" else 2)
    assert texts_of(found) == list(cut_by_characters(TEXTS, 5_000))


@pytest.mark.parametrize("layout", ["tiny", "even", "one", "uneven"])
def test_progress_reaches_the_end(tmp_path: Path, layout: str) -> None:
    config = config_of(_write(tmp_path / "a.parquet", LAYOUTS[layout]))
    reader = _Reader(config, tmp_path / "work", SILENT)
    units = list(reader.units(open_sources(config)))
    sizes = [size for _, size, _ in reader.read(units, ThisProcess())]
    assert sum(sizes) == pytest.approx(units[0].size, abs=len(sizes))
    assert len(sizes) < 3 or max(sizes) < units[0].size / 3
