"""Reading sources into blocks and shards: joining, cutting, limits, files that change meanwhile."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.read.part import FilePart, SourceChanged
from crammed.data.preparing.read.reading_job import (
    BlockJob,
    ReadJob,
    cut_by_characters,
    fingerprints,
)
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.machine.engine import Item, Result
from crammed.terminal.progress import Progress
from support.reading import Cleaning, ThisProcess, read_source, texts_of, write_files
from support.samples import COMPRESS
from support.text import documents, write_jsonl


class _Late(ThisProcess):
    """Begins no job before all are drawn, as many busy workers would."""

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        drawn = list(jobs)
        self.jobs += drawn
        return map(function, drawn)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5_000)


WRITERS: dict[str, Callable[[Path, list[str]], object]] = {
    ".jsonl": write_jsonl,
    ".txt": lambda path, texts: path.write_text("\n\n \n".join(texts), "utf-8"),
    ".csv": lambda path, texts: path.write_text("text\n" + "\n".join(texts) + "\n", "utf-8"),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("kind", [ThisProcess, _Late])
def test_a_large_file_is_cut_where_its_documents_say(
    tmp_path: Path, suffix: str, kind: type[ThisProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents(300)
    file = tmp_path / f"a{suffix}"
    WRITERS[suffix](file, texts)
    engine = kind()
    hashed = Mock(side_effect=FilePart.fingerprint)
    with monkeypatch.context() as patch:
        patch.setattr(FilePart, "fingerprint", lambda part: hashed(part))
        text = read_source(file, tmp_path / "work", engine)
    assert hashed.call_count == (suffix == ".csv"), "lines are hashed as they are read"
    assert texts_of(text) == list(cut_by_characters(texts, 5_000))
    assert len(text.shards) > 10
    pieces = [job for job in engine.jobs if isinstance(job, BlockJob)]
    assert len(pieces) > len(text.shards), "many workers share the file"
    assert [shard.characters for shard in text.shards] == [
        sum(map(len, some)) for some in texts_of(text)
    ]
    (part,) = open_sources(DataConfig.model_validate({"sources": [str(file)]}))[0].parts
    assert fingerprints(text.folders[0][0]) == [part.fingerprint()]


def test_dropped_documents_count_for_where_shards_are_cut(tmp_path: Path) -> None:
    texts = [text if n % 3 else "\ufffd" * 100 for n, text in enumerate(documents(300))]
    write_jsonl(tmp_path / "a.jsonl", texts)
    expected = [
        [text for text in some if "\ufffd" not in text] for some in cut_by_characters(texts, 5_000)
    ]
    text = read_source(tmp_path / "a.jsonl", tmp_path / "work")
    assert texts_of(text) == expected
    assert text.dropped["empty"] == [100, 10_000]


def test_small_files_share_shards_and_large_ones_have_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    sizes = {"a": 15, "b": 15, "c": 150, "d": 15, "e": 15, "f": 15, "g": 15}
    every = {name: documents(size, seed=n) for n, (name, size) in enumerate(sizes.items())}
    for name, texts in every.items():
        write_jsonl(folder / f"{name}.jsonl", texts)
    found = texts_of(read_source(folder, tmp_path / "work"))
    runs = [every["a"] + every["b"], every["c"], [t for name in "defg" for t in every[name]]]
    assert found == [some for run in runs for some in cut_by_characters(run, 5_000)]


@pytest.mark.parametrize("most", [1, 4_000, 12_345, 10**9])
@pytest.mark.parametrize("large", [True, False])
def test_a_limit_ends_a_source_within_a_document_of_it(
    tmp_path: Path, most: int, large: bool
) -> None:
    """However many workers read ahead, and whatever is wrong beyond the limit."""
    texts = documents(400)
    source = tmp_path / "texts"
    for number in range(1 if large else 20):
        own = texts if large else texts[20 * number : 20 * number + 20]
        write_jsonl(source / f"{number:02d}.jsonl", own)
    if most < 10**9:
        with sorted(source.iterdir())[-1].open("a") as file:
            file.write("not json\n")
    read = list(accumulate(map(len, texts)))
    count = sum(total < most for total in [0, *read[:-1]])
    for name, engine in (("late", _Late()), ("now", ThisProcess())):
        for _ in range(2):
            sources = [{"path": str(source), "max_characters": most}]
            text = read_source(source, tmp_path / name, engine, sources=sources)
            assert list(chain(*texts_of(text))) == texts[:count]
    if not large and most < 10**9:
        assert len(engine.jobs) < 20, "nothing is read far beyond the limit"


@pytest.mark.parametrize("kind", [ThisProcess, _Late])
def test_a_changed_file_comes_before_known_ones(tmp_path: Path, kind: type[ThisProcess]) -> None:
    """Its text counts first, although they are known to reach the limit while it is read."""
    folder = tmp_path / "texts"
    every = [documents(15, seed=number) for number in range(6)]
    for number, texts in enumerate(every):
        write_jsonl(folder / f"{number}.jsonl", texts)
    read_source(folder, tmp_path / "work")
    every[0] = documents(16, seed=9)
    write_jsonl(folder / "0.jsonl", every[0])
    write_jsonl(folder / "5.jsonl", documents(16, seed=5))
    sources = [{"path": str(folder), "max_characters": sum(map(len, chain(*every[1:4])))}]
    engine = kind()
    found = list(chain(*texts_of(read_source(folder, tmp_path / "work", engine, sources=sources))))
    new = read_source(folder, tmp_path / "new", sources=sources)
    assert found == list(chain(*texts_of(new)))
    assert found[:16] == every[0]
    assert len(engine.jobs) == 4 + 1, "four are known, one is read, the last does not matter"


def test_no_more_of_an_archive_is_read_than_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents(300)
    inner = write_jsonl(tmp_path / "a.jsonl", texts)
    inner.write_text(f"not json\n{inner.read_text()}")
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(inner, inner.name)
    cleaning = Cleaning(monkeypatch)
    read = [0, *accumulate(map(len, texts))]
    for most, again in ((4_000, True), (4_000, False), (3_000, False), (8_000, True), (None, True)):
        cleaning.sizes.clear()
        sources = [{"path": str(file), "max_characters": most}]
        text = read_source(file, tmp_path / "work", sources=sources, unreadable="skip")
        found = list(chain(*texts_of(text)))
        assert found == texts[: sum(total < (most or 10**9) for total in read[:-1])]
        assert [lost.records for lost in text.lost] == [1]
        assert sum(cleaning.sizes) == (len(found) if again else 0)


def test_nothing_is_read_twice(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", 6, 10)
    write_jsonl(folder / "large.jsonl", documents(200, seed=9))
    before = texts_of(read_source(folder, tmp_path / "work"))
    for part in folder.iterdir():
        os.utime(part, (1, 1))  # touched, but not changed
    engine = ThisProcess()
    assert texts_of(read_source(folder, tmp_path / "work", engine)) == before
    assert not [job for job in engine.jobs if isinstance(job, BlockJob)]
    assert all(shards.read_done(job.folder / "read.json") for job in engine.jobs)
    write_jsonl(folder / "more.jsonl", documents(10, seed=10))
    again = ThisProcess()
    read_source(folder, tmp_path / "work", again)
    new = [job for job in again.jobs if job.folder not in {each.folder for each in engine.jobs}]
    assert [part.name for job in new for part in job.parts] == ["more.jsonl"]


@pytest.mark.parametrize("count", [10, 300])
def test_text_is_read_again_in_another_format(tmp_path: Path, count: int) -> None:
    file = write_jsonl(tmp_path / "a.txt", documents(count))
    (first, *_) = chain(*texts_of(read_source(file, tmp_path / "work", format="txt")))
    assert first.startswith('{"text": ')
    found = read_source(file, tmp_path / "work", format="jsonl")
    assert list(chain(*texts_of(found))) == documents(count)


def test_copies_of_a_file_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name in ("a", "b"):
        write_jsonl(folder / name / "same.jsonl", documents(150))
    engine = _Late()
    found = texts_of(read_source(folder, tmp_path / "work", engine))
    places = [(job.folder, job.number) for job in engine.jobs]
    assert len(set(places)) == len(places) > 4
    assert found[: len(found) // 2] == found[len(found) // 2 :]


@pytest.mark.parametrize("kind", [ThisProcess, _Late])
@pytest.mark.parametrize("large", [True, False])
def test_damaged_records_are_left_out_and_counted(
    tmp_path: Path, kind: type[ThisProcess], large: bool
) -> None:
    folder = write_files(tmp_path / "texts", 3, 200 if large else 20)
    bad = folder / "1.jsonl"
    lines = bad.read_text().splitlines(True)
    bad.write_text("".join(["{}\n", *lines[:-5], "not json\n", *lines[-5:]]))
    with pytest.raises(InputError, match=r"1\.jsonl, line 1: no field 'text'"):
        read_source(folder, tmp_path / "stop", kind())
    for _ in range(2):
        text = read_source(folder, tmp_path / "work", kind(), unreadable="skip")
        (lost,) = text.lost
        assert (lost.part, lost.records, text.skipped) == ("1.jsonl", 2, [])
        assert lost.first.startswith("texts/1.jsonl, line 1: no field 'text'")
        assert text.documents == 3 * len(lines)
    with pytest.raises(InputError, match=r"1\.jsonl, line 1: no field 'text'"):
        read_source(folder, tmp_path / "work", kind())
    count = 2_000 if large else 20
    bad.write_text("not json\n" * count)
    text = read_source(folder, tmp_path / "work", kind(), unreadable="skip")
    assert text.documents == 2 * len(lines)
    assert sum(lost.records for lost in text.lost) == (count if large else 0)
    assert [each["part"] for each in text.skipped] == ([] if large else ["1.jsonl"])


def test_many_files_that_are_skipped_are_told_of_in_few_lines(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    write_jsonl(folder / "good.jsonl", documents(10))
    for number in range(50):
        (folder / f"{number:02d}.jsonl").write_text("not json\n")
    for new in (True, False):  # the second time, nothing is read
        said = io.StringIO()
        text = read_source(folder, tmp_path / "work", None, Progress(said), unreadable="skip")
        assert (len(text.skipped), text.documents) == (50, 10)
        lines = [line for line in said.getvalue().splitlines() if line.startswith("skipped  ")]
        assert lines[-1] == "skipped  50 files in all"
        shown = [line.partition(": ")[0] for line in lines[:-1]]
        assert shown == [f"skipped  {number:02d}.jsonl" for number in range(10 if new else 0)]


@pytest.mark.parametrize("kind", [ThisProcess, _Late])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.xz", "a.csv.gz"])
@pytest.mark.parametrize("count", [40, 600])
def test_a_file_is_read_up_to_damage_in_its_compression(
    tmp_path: Path, kind: type[ThisProcess], name: str, count: int
) -> None:
    texts = [f"{number} {text}" for number, text in enumerate(documents(count))]
    content = "\n\n".join(texts)
    if name.startswith("a.jsonl"):
        content = "\n".join(json.dumps({"text": text}) for text in texts)
    elif name.startswith("a.csv"):
        content = "text\n" + "\n".join(f'"{text}"' for text in texts)
    suffix = Path(name).suffix
    whole = COMPRESS[suffix](content.encode())
    file = tmp_path / name
    file.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match="cannot be read to its end"):
        read_source(file, tmp_path / "stop", kind())
    found = []
    for _ in range(2):
        text = read_source(file, tmp_path / "work", kind(), unreadable="skip")
        if text.skipped:  # the little that there is lies in what cannot be unpacked
            assert count == 40
            continue
        (lost,) = text.lost
        assert lost.records == 1
        assert "cannot be read to its end" in lost.first
        found.append(list(chain.from_iterable(texts_of(text))))
        assert found[0] == found[-1] == texts[: len(found[0])]
        assert count == 40 or count / 4 < len(found[0]) < count


def test_damage_is_told_in_the_same_order_when_it_is_known(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{n} {text}"}) for n, text in enumerate(documents(600))]
    whole = COMPRESS[".gz"]("\n".join([lines[0], "not json", *lines[1:]]).encode())
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(whole[: len(whole) * 2 // 3])
    new, known = (read_source(file, tmp_path / "work", unreadable="skip").lost for _ in range(2))
    assert known == new
    assert [lost.records for lost in new] == [2]
    assert new[0].first.startswith("a.jsonl.gz, line 2: not valid JSON")


def _meddle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something while a file is read, small or large."""
    documents_of, blocks = FilePart.documents, FilePart.blocks

    def meddling(items: Iterable[Any] | None) -> Iterator[Any]:
        for number, item in enumerate(items or ()):
            if number == 1:
                act()
            yield item

    monkeypatch.setattr(
        FilePart, "documents", lambda part, *more: meddling(documents_of(part, *more))
    )
    monkeypatch.setattr(FilePart, "blocks", lambda part, *more: meddling(blocks(part, *more)))


@pytest.mark.parametrize("unreadable", ["stop", "skip"])
@pytest.mark.parametrize("count", [40, 9_000])
@pytest.mark.parametrize("more", ['{"text": "One more."}\n', '{"text": "half a li'])
def test_a_file_that_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str, count: int, more: str
) -> None:
    file = write_jsonl(tmp_path / "log.jsonl", documents(count))
    own = file.read_bytes()
    with monkeypatch.context() as patch:
        _meddle(patch, lambda: file.write_bytes(own + more.encode()))
        with pytest.raises(SourceChanged, match=rf"^{file.name} changed while it was read: wait"):
            read_source(file, tmp_path / "work", unreadable=unreadable)
    file.write_bytes(own)
    assert read_source(file, tmp_path / "work").documents == count


def test_blocks_of_a_file_that_changed_are_not_used_when_it_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", documents(9_000))
    own = file.read_bytes()
    with monkeypatch.context() as patch:
        _meddle(patch, lambda: file.write_bytes(own.replace(b"sailor", b"tailor")))
        with pytest.raises(SourceChanged):
            read_source(file, tmp_path / "work")
    file.write_bytes(own)
    found = read_source(file, tmp_path / "work")
    assert not any("tailor" in text for some in texts_of(found) for text in some)


class _Ended(BaseException):
    """Ends the process, as far as a test can."""


class _Ahead(ThisProcess):
    """Hands out all jobs before the first is done, as to many workers; the last is never done."""

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        given = list(jobs)
        ends = isinstance(given[-1], BlockJob)
        yield from super().map(function, given[:-1] if ends else given)
        if ends:
            raise _Ended


def test_a_file_whose_last_piece_was_never_read_is_not_taken_for_read(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [*documents(300), "It ends with a sailor."])
    read_source(file, tmp_path / "work")
    file.write_bytes(file.read_bytes().replace(b"sailor", b"tailor"))
    with pytest.raises(_Ended):
        read_source(file, tmp_path / "work", _Ahead())
    found = read_source(file, tmp_path / "work")
    assert texts_of(found) == texts_of(read_source(file, tmp_path / "new"))


@pytest.mark.parametrize("count", [40, 1_000])
def test_a_file_that_was_only_touched_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", documents(count))
    _meddle(monkeypatch, lambda: os.utime(file, (1, 1)))
    assert read_source(file, tmp_path / "work").documents == count


def test_a_large_file_that_had_been_begun_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", documents(300))
    cleaned = Cleaning(monkeypatch, {4: InputError("the disk is full")}).names
    with pytest.raises(InputError, match="full"):
        read_source(file, tmp_path / "work")
    found = read_source(file, tmp_path / "work")
    assert cleaned.count("00000") == cleaned.count("00002") == 1
    assert cleaned.count("00003") == 2
    assert texts_of(found) == list(cut_by_characters(documents(300), 5_000))


def test_many_files_make_few_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1_000_000)
    folder = write_files(tmp_path / "texts", 200, 1)
    engine = ThisProcess()
    text = read_source(folder, tmp_path / "work", engine)
    assert [type(job) for job in engine.jobs] == [ReadJob]
    assert text.documents == 200
    assert len(list((tmp_path / "work").rglob("*"))) < 12
