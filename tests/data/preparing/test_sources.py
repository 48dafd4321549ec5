from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from crammed.config import DataConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.read import python_docs, source
from crammed.data.preparing.read.part import FilePart, Part
from crammed.data.preparing.read.source import describe_reading, open_sources
from crammed.errors import InputError
from crammed.formats.documents import BINARY
from crammed.formats.plain import SMALL
from support.samples import (
    COMPRESS,
    FORMATS,
    arrow,
    opened,
    read,
    refusal,
    tarred,
    web_archive,
    zipped,
)


def test_plain_text_has_no_fields_to_filter_by(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert "no fields" in refusal(tmp_path, where={"lang": ["en"]})
    assert "no fields" in refusal("python-docs", where={"lang": ["en"]})


def test_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for folder in ("sub", ".hidden"):
        (tmp_path / folder).mkdir()
    for name in ("sub/z.txt", "b.txt", "t.txt", "a.txt", ".hidden/c.txt", "._a.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d.jsonl").write_text('{"text": "d.jsonl"}')
    (tmp_path / "ignored.png").write_bytes(b"\x89PNG")
    (tmp_path / "settings.json").write_text('{\n "a": 1\n}')
    (tmp_path / "lines.json").write_text('{"text": "lines.json"}\n')
    expected = ["a.txt", "b.txt", "d.jsonl", "lines.json", "sub/z.txt", "t.txt"]
    assert read(tmp_path) == expected
    assert [part.name for part in opened(tmp_path).parts][-2:] == ["z.txt", "t.txt"]


def test_globs(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.txt", "a.png", "deep/c.txt"):
        (tmp_path / name).write_text(name)
    assert read(tmp_path / "*.txt") == ["a.txt", "b.txt"]
    assert read(tmp_path / "*") == ["a.txt", "b.txt", "deep/c.txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    assert "no such data" in refusal(tmp_path / "*.jsonl")
    assert "matches no file of a known format" in refusal(tmp_path / "*.png")
    (tmp_path / "odd[1].txt").write_text("a name, not a glob")
    assert read(tmp_path / "odd[1].txt") == ["a name, not a glob"]


def saved(folder: Path, texts: list[str]) -> Path:
    """A folder as `save_to_disk` writes it, with one row in each file."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{len(texts):05d}.arrow" for n in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_bytes(arrow([{"text": text}]))
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{\n}")
    return folder


def test_folders_saved_by_datasets(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", ["a", "b"])
    (one / "cache-1234.arrow").write_bytes(arrow([{"text": "not listed"}]))
    assert read(one) == ["a", "b"]
    saved(tmp_path / "dict" / "train", ["c"])
    saved(tmp_path / "dict" / "validation", ["d"])
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert read(tmp_path / "dict") == ["c", "d"]


@pytest.mark.parametrize("name", ["../secret.arrow", "a/../../secret.arrow", "/etc/passwd", 5, ""])
def test_no_name_leads_out_of_a_folder_saved_by_datasets(tmp_path: Path, name: object) -> None:
    (tmp_path / "secret.arrow").write_bytes(arrow([{"text": "secret"}]))
    folder = saved(tmp_path / "saved", ["a"])
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].append({"filename": name})
    (folder / "state.json").write_text(json.dumps(state))
    fault = f"state.json names {name!r}, which leads out of its folder"
    assert fault in refusal(folder)
    assert fault in refusal(tmp_path)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/1.txt", "a/b/2.txt"):
        (tmp_path / name).write_text(name)
    for name in ("a/again", "a/b/up", "a/b/top"):  # several of them took for ever
        (tmp_path / name).symlink_to(tmp_path if name.endswith("top") else tmp_path / "a")
    (tmp_path / "a" / "self.txt").symlink_to("self.txt")
    for named in (tmp_path, tmp_path / "a" / "*.txt"):
        assert "self.txt cannot be read" in refusal(named)
    (tmp_path / "a" / "self.txt").unlink()
    for pattern in (tmp_path, tmp_path / "**" / "*.txt", tmp_path / "**", tmp_path / "**/**/*"):
        assert sorted(read(pattern)) == ["a/1.txt", "a/b/2.txt"]
    (tmp_path / "a" / "b" / "x.png").touch()
    assert opened(tmp_path).ignored == {".png": 1}


def test_a_file_with_several_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "z.txt").write_text("z")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "c.txt").write_text("c")
    (folder / "d.txt").symlink_to("c.txt")
    (folder / "links").symlink_to(tmp_path / "elsewhere")
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    assert [part.name for part in opened(folder).parts] == ["c.txt", "z.txt"]
    assert [part.name for part in opened(folder / "*").parts] == ["c.txt", "z.txt"]
    assert [part.name for part in opened(folder / "d.txt").parts] == ["d.txt"]


@pytest.mark.parametrize("suffix", [".txt", ".parquet", ".jsonl.zst"])
@pytest.mark.parametrize("unreadable", ["stop", "skip"])
def test_names_that_are_not_utf8_are_refused_at_once(
    tmp_path: Path, suffix: str, unreadable: str
) -> None:
    try:
        Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9" + suffix.encode())).write_text("x")
    except OSError:
        pytest.skip("the file system has no such names")
    config = DataConfig.model_validate({"sources": [str(tmp_path)], "unreadable": unreadable})
    with pytest.raises(InputError, match=r"/caf\\xe9\.\S+ is not UTF-8 text: rename it$") as caught:
        open_sources(config)
    str(caught.value).encode()


def test_line_breaks_in_names_stay_out_of_messages(tmp_path: Path) -> None:
    (tmp_path / "two\nlines\x1b[1m.jsonl").write_text("not json")
    assert r"two\x0alines\x1b[1m.jsonl, line 1: not valid JSON" in refusal(tmp_path)


def test_a_pipe_among_the_files_is_no_reason_to_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert "a.json is not a regular file" in refusal(tmp_path)


def test_json_arrays_are_data_and_other_json_is_not(
    tmp_path: Path, pipe: Callable[[bytes], None]
) -> None:
    for name, content in (("a", '[\n{"text": "a"},'), ("b", '[{"text": "b"}]'), ("c", "[1]")):
        (tmp_path / f"{name}.json").write_text(content)
    assert read(tmp_path / "b.json") == ["b"]
    assert "a.json, record 2: cut off, or not an object" in refusal(tmp_path)
    (tmp_path / "a.json").write_text('[{"text": "a')
    assert "a.json, record 1: cut off, or longer than" in refusal(tmp_path)
    (tmp_path / "a.json").unlink()
    assert read(tmp_path) == ["b"]
    assert opened(tmp_path).ignored == {".json": 1}
    pipe(b'\n[ {"text": "piped"} ]')
    assert read("-") == ["piped"]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    def into(data: bytes) -> None:
        source._spooled.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    yield into
    source._spooled.cache_clear()


def test_standard_input(pipe: Callable[[bytes], None]) -> None:
    pipe(b'\n{"text": "a"}\n{"text": "b"}\n')
    assert read("-") == ["a", "b"]
    assert read("-") == ["a", "b"], "a second opening reads the same"
    part = opened("-").parts[0]
    assert list(part.documents()) == list(part.documents())
    assert part.fingerprint()["name"] == part.name == opened("-").name == "standard-input"
    pipe(b"[1] is\nplain.\n\n{text}\n")
    assert read("-") == ["[1] is\nplain.", "{text}"]
    pipe(b"")
    assert "standard input is empty" in refusal("-")
    pipe(b'{"text": "a"}\n{"text"\n')
    assert "standard input, line 2: not valid JSON" in refusal("-")


def test_standard_input_that_fills_the_disk(
    pipe: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(b"text")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(shutil, "copyfileobj", Mock(side_effect=full))
    place = tempfile.gettempdir()
    said = f"the disk is full: free some space or set TMPDIR to a folder on .* that of {place}$"
    assert re.match(said, refusal("-"))


RECORDS: list[dict[str, Any]] = [{"n": n, "text": f"Text {n}, and more."} for n in range(3)]
PIPED = {
    **{suffix: FORMATS[suffix](RECORDS) for suffix in FORMATS},
    "json in gz": COMPRESS[".gz"](FORMATS[".jsonl"](RECORDS)),
    "csv in zst": COMPRESS[".zst"](FORMATS[".csv"](RECORDS)),
    "array in bz2": COMPRESS[".bz2"](FORMATS[".json"](RECORDS)),
    "text in xz": COMPRESS[".xz"]("\n\n".join(row["text"] for row in RECORDS).encode()),
    "semicolons": "".join(
        f"{n};{t}\n" for n, t in [("n", "text"), *((r["n"], r["text"]) for r in RECORDS)]
    ).encode(),
    "UTF-16": "\n\n".join(row["text"] for row in RECORDS).encode("utf-16"),
    "zip": zipped({"rows.jsonl": FORMATS[".jsonl"](RECORDS)}),
    "tar in gz": COMPRESS[".gz"](tarred({"rows.csv": FORMATS[".csv"](RECORDS)})),
    "web archive": web_archive([("conversion", "text/plain", r["text"].encode()) for r in RECORDS]),
}


@pytest.mark.parametrize("what", PIPED)
def test_standard_input_of_any_format(pipe: Callable[[bytes], None], what: str) -> None:
    pipe(PIPED[what])
    assert read("-") == [row["text"] for row in RECORDS]


@pytest.mark.parametrize("format", ["auto", "jsonl"])
def test_records_of_standard_input_are_filtered(pipe: Callable[[bytes], None], format: str) -> None:
    pipe(FORMATS[".jsonl"](RECORDS))
    assert read("-", format=format, where={"n": ["1"]}) == [RECORDS[1]["text"]]
    pipe(b"Plain text.")
    assert "no fields" in refusal("-", where={"n": ["1"]})
    pipe(b"")
    assert "standard input is empty" in refusal("-", format=format, where={"n": ["1"]})


@pytest.mark.parametrize("number", ["0", "1", "2", "3"])
def test_a_column_of_standard_input_may_be_numbered(
    pipe: Callable[[bytes], None], number: str
) -> None:
    table = "1;One.\n2;Two.\n"
    pipe(table.encode())
    columns = {"1": ["1", "2"], "2": ["One.", "Two."]}
    assert read("-", text_field=number) == columns.get(number, [table.strip()])
    pipe(b"One.\nTwo.\n")
    assert read("-", text_field=number) == ["One.\nTwo."], "a table has several columns"


def test_standard_input_whose_format_is_named(pipe: Callable[[bytes], None]) -> None:
    pipe(b"text\nnot a table\n")
    assert read("-", format="txt") == ["text\nnot a table"]
    pipe(b"# *Title*")
    assert read("-") == ["# *Title*"]
    assert read("-", format="md") == ["Title"]
    pipe(b"\x89PNG\0\0")
    assert "standard input is of no known format: is it a binary file?" in refusal("-")


def test_files_whose_names_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Text.")
    (tmp_path / "program").write_bytes(b"\x7fELF\0")
    (tmp_path / "page.md").write_text("*Page*")
    (tmp_path / "code.py").write_text("x = *y")
    assert read(tmp_path) == ["Text.", "Page"]
    assert opened(tmp_path).ignored == {".py": 1, "without a suffix": 1}
    assert read(tmp_path / "code.py", format="txt") == ["x = *y"]
    assert "code.py is of no known format" in refusal(tmp_path / "code.py")
    assert "set its format, as in data.format=txt" in refusal(tmp_path / "code.py")
    (tmp_path / "program").unlink()
    assert read(tmp_path, format="txt") == ["Text.", "x = *y", "*Page*"]
    (tmp_path / "rows.jsonl").write_text('{"text": "Row."}\n')
    assert read(tmp_path) == ["Row."], "what describes data is not data"
    assert opened(tmp_path).ignored == {".py": 1, "without a suffix": 1, ".md": 1}


def test_json_without_text_beside_text_is_left_out(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text('[\n {"source": "a", "bytes": 3},\n {"source": "b", "bytes": 3}\n]')
    no_field = "record 1: no field 'text' (it has: source, bytes)"
    assert no_field in refusal(tmp_path), "nothing else is there"
    (tmp_path / "README.md").write_text("About it.")
    assert no_field in refusal(tmp_path), "what describes data is no reason to leave it out"
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "lines.json").write_text('{"text": "Line."}\n')
    (tmp_path / "null.json").write_text('{"text": null}\n')
    found = opened(tmp_path)
    assert [part.name for part in found.parts] == ["a.txt", "lines.json", "null.json"]
    assert found.without_field == ("manifest.json",)
    config = DataConfig.model_validate({"sources": [str(tmp_path)]})
    said = "ignoring 1 JSON file whose first record lacks the field of text: manifest.json"
    assert said in describe_reading([found], config)
    assert no_field in refusal(manifest), "a file that is named is wanted"
    (tmp_path / "rows.jsonl").write_text('{"body": "Row."}\n')
    assert "rows.jsonl, line 1: no field 'text'" in refusal(tmp_path), "only .json may be settings"


def test_what_was_made_of_text_is_not_text(tmp_path: Path, corpus: Corpus) -> None:
    """Else held-out and dropped documents would be trained on."""
    (tmp_path / "a.txt").write_text("Text.")
    shutil.copytree(corpus.path, tmp_path / "in" / "corpus")
    (tmp_path / "work" / "parts").mkdir(parents=True)
    for name in ("lock", "given-heldout.jsonl", "parts/a.jsonl"):
        (tmp_path / "work" / name).write_text('{"text": "Held out."}\n')
    (tmp_path / "run").mkdir()
    for name in ("config.json", "heartbeat.json", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text('{"step": 1}\n')
    assert read(tmp_path) == ["Text."]
    ignored = {"corpus (corpus)": 1, "working folder (work)": 1, "run (run)": 1}
    assert opened(tmp_path).ignored == ignored
    said = refusal(tmp_path / "in" / "corpus")
    assert "is a corpus, not text: train on it with --corpus " in said
    assert "--extend" in said


def test_a_terminal_is_refused_as_standard_input(
    pipe: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(b"text")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "standard input is a terminal" in refusal("-")


def test_the_settings_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    plain = opened(tmp_path / "a.txt")
    assert (plain.name, plain.weight, plain.max_characters) == ("a.txt", 1.0, None)
    named = opened(tmp_path, name="mine", weight=2.5, max_characters=7)
    assert (named.name, named.weight, named.max_characters) == ("mine", 2.5, 7)
    assert plain.reading == opened(tmp_path).reading != opened(tmp_path, documents="line").reading
    json.dumps(opened(tmp_path / "a.txt").reading)


def test_each_source_may_have_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "t", "body": "b"}\n')
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    config = {
        "sources": [
            str(tmp_path / "a.jsonl"),
            {"path": str(tmp_path / "a.jsonl"), "text_field": "body"},
            {"path": str(tmp_path / "a.txt"), "documents": "line"},
            str(tmp_path / "a.txt"),
        ]
    }
    texts = [
        [text for part in source.parts for text in part.documents()]
        for source in open_sources(DataConfig.model_validate(config))
    ]
    assert texts == [["t"], ["b"], ["one", "two"], ["one\ntwo"]]


def test_parts_travel_to_workers_and_know_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    part = opened("a.txt").parts[0]
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(part))
    assert list(again.documents()) == ["x"]
    fingerprint = again.fingerprint()
    assert set(fingerprint) == {"name", "bytes", "sha256"}
    (tmp_path / "a.txt").write_text("y")
    assert again.fingerprint() != fingerprint
    pickle.dumps(python_docs.PythonDocs())


STORED = {
    "plain": ("a.txt", "One é\n\n  two\n\n".encode()),
    "carriage returns": ("a.txt", b"one\rtwo\r\nthree\r"),
    "mark": ("a.txt", b"\xef\xbb\xbfone\n"),
    "another encoding": ("a.txt", "one\ntwo".encode("utf-16")),
    "not UTF-8": ("a.txt", b"one\ntwo \xff\n"),
    "binary": ("a.txt", b"one\n\0\n"),
    "line feeds alone": ("a.txt", b"\n\n"),
    **{f"text{suffix}": (f"a.txt{suffix}", pack(b"one\n")) for suffix, pack in COMPRESS.items()},
    "packed under a plain name": ("a.txt", gzip.compress(b"one\n")),
    "damaged": ("a.txt.gz", gzip.compress(b"one\n" * 9)[:-9]),
    **{suffix: (f"a{suffix}", write([{"text": "one"}])) for suffix, write in FORMATS.items()},
    "array": ("a.json", b'\xef\xbb\xbf\n[{"text": "one"},\n {"text": "two"}]'),
    "markup": ("a.md", b"# one\r\ntwo"),
}


@pytest.mark.parametrize("documents", ["file", "line"])
@pytest.mark.parametrize("kind", STORED)
def test_a_small_file_that_was_loaded_reads_as_from_the_disk(
    tmp_path: Path, kind: str, documents: str
) -> None:
    name, content = STORED[kind]
    (tmp_path / name).write_bytes(content)

    def texts(part: Part) -> tuple[list[str], str]:
        found: list[str] = []
        try:
            found.extend(part.documents())
        except InputError as error:
            return found, str(error)
        return found, ""

    (part,) = opened(tmp_path, documents=documents).parts
    assert isinstance(part, FilePart)
    expected, fingerprint = texts(part), part.fingerprint()
    loaded = part.loaded()
    assert (loaded is part) == (part.format in BINARY)
    if loaded is not part:
        (tmp_path / name).unlink()
    assert texts(loaded) == expected
    assert loaded.fingerprint() == fingerprint


def test_a_file_that_is_not_small_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * SMALL)
    (part,) = opened(tmp_path).parts
    assert isinstance(part, FilePart)
    assert part.loaded() is part


def test_missing_empty_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data: name a file"):
        open_sources(DataConfig())
    assert "no such data" in refusal(tmp_path / "none.txt")
    assert "holds no file of a known format: .txt, .md," in refusal(tmp_path)
    for name in ("a.docx", "a.parquet.gz", "a"):
        (tmp_path / name).write_text("x\0")
        assert "of no known format" in refusal(tmp_path / name)
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refusal(tmp_path)


def test_empty_files_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    nothing = {"gz": gzip, "bz2": bz2, "xz": lzma}
    for suffix, library in nothing.items():
        (tmp_path / f"a.jsonl.{suffix}").write_bytes(library.compress(b""))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"")[:9])
    (tmp_path / "good.jsonl.gz").write_bytes(gzip.compress(b'{"text": "good"}'))
    for unreadable in ("stop", "skip"):
        config = DataConfig.model_validate({"sources": [str(tmp_path)], "unreadable": unreadable})
        found = open_sources(config)
        assert [part.name for part in found[0].parts] == ["cut.jsonl.gz", "good.jsonl.gz"]
        (line,) = describe_reading(found, config)
        assert line == "ignoring 4 empty files: a.jsonl.bz2, a.jsonl.gz, a.jsonl.xz, a.txt"


def test_damage_that_is_to_be_skipped_is_reported_only_when_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bad.txt")
    (tmp_path / "good.txt").write_text("good")
    bad, good = opened(tmp_path, unreadable="skip").parts
    with pytest.raises(InputError, match="is not a regular file"):
        bad.documents()
    assert list(good.documents()) == ["good"]
    (tmp_path / "good.txt").unlink()
    with pytest.raises(InputError, match=r"good\.txt cannot be read"):
        good.fingerprint()
