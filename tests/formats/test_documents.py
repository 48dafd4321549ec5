from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crammed.formats import lines
from crammed.formats.documents import READERS, ReadOptions, format_of
from crammed.formats.lines import STOP, File
from support.samples import (
    COMPRESS,
    FORMATS,
    MARKUP,
    WHOLE,
    arrow,
    fits,
    json_array,
    json_lines,
    opened,
    read,
    refusal,
)

TEXTS = [
    "One, schön.",
    "Two\nlines.",
    'A "quoted" word,\tand a tab.',
    "",
    "Smile \U0001f600 \u2028.",
    '"Begins, and',
    'ends so"',
    '""',
]


def test_every_format_has_a_test() -> None:
    assert {*FORMATS, ".txt", *MARKUP} == set(READERS)


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", [suffix for suffix in FORMATS if suffix not in WHOLE])
def test_text_formats_in_every_compression(tmp_path: Path, suffix: str, compression: str) -> None:
    file = tmp_path / f"a{suffix}{compression}"
    texts = [text for text in TEXTS if fits(suffix, text)]
    records = [{"other": n, "text": text} for n, text in enumerate(texts)]
    file.write_bytes(COMPRESS[compression](FORMATS[suffix](records)))
    assert read(file) == texts


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.TXT").write_bytes(b"One.\n\nTwo.\n")
    (tmp_path / "B.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "Three."}\n'))
    assert format_of(tmp_path / "A.TXT") == ".txt"
    assert format_of(tmp_path / "B.JSONL.GZ") == ".jsonl"
    assert read(tmp_path / "A.TXT") == ["One.", "Two."]
    assert read(tmp_path / "B.JSONL.GZ") == ["Three."]


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_in_both_layouts(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.arrow"
    texts = TEXTS * 60  # more than one batch
    file.write_bytes(arrow([{"text": text} for text in texts], kind))
    assert read(file) == texts


def test_parquet_of_many_rows_and_groups(tmp_path: Path) -> None:
    texts = TEXTS * 60
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=70)
    assert read(tmp_path / "a.parquet") == texts
    dictionary = pa.table({"text": pa.array(texts).dictionary_encode()})
    pq.write_table(dictionary, tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == texts


@pytest.mark.parametrize("compression", COMPRESS)
def test_the_ways_to_divide_plain_text_into_documents(tmp_path: Path, compression: str) -> None:
    file = tmp_path / f"b.txt{compression}"
    file.write_bytes(COMPRESS[compression](b"First\r\nstill.\n\n \nSecond.\n"))
    assert read(file) == ["First\r\nstill.", "Second."]
    assert read(file, documents="file") == ["First\r\nstill.\n\n \nSecond."]
    assert read(file, documents="line") == ["First", "still.", "", " ", "Second."]


ANY_TEXT = st.text(st.characters(codec="utf-8"))
FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("suffix", FORMATS)
@FEW
@given(texts=st.lists(ANY_TEXT, min_size=1))
def test_records_come_back_as_they_were(tmp_path: Path, suffix: str, texts: list[str]) -> None:
    file = tmp_path / f"a{suffix}"
    texts = [text for text in texts if fits(suffix, text)] or ["one"]
    file.write_bytes(FORMATS[suffix]([{"text": text, "n": 1} for text in texts]))
    assert read(file) == texts


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0")).filter(
    lambda line: bool(line.strip()) and not line.startswith("\ufeff")
)


@FEW
@given(texts=st.lists(st.lists(LINE, min_size=1).map("\n".join), min_size=1))
def test_plain_text_comes_back_as_it_was(tmp_path: Path, texts: list[str]) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\n\n".join(texts).encode())
    assert read(file) == texts


def test_very_long_documents(tmp_path: Path) -> None:
    long = "word " * 600_000
    for suffix in (".jsonl", ".csv", ".parquet"):
        file = tmp_path / f"a{suffix}"
        file.write_bytes(FORMATS[suffix]([{"text": long}]))
        assert read(file) == [long]
    (tmp_path / "a.txt").write_text(long)
    assert read(tmp_path / "a.txt") == [long]


def test_half_a_character_in_json_becomes_a_replacement(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a \\ud83d b"}\n{"text": "\\ud83d\\ude00"}\n')
    assert read(file) == ["a \ufffd b", "\U0001f600"]


NESTED = [
    {"meta": {"text": "a", "set": "Wiki"}, "n": 1},
    {"meta": {"text": "b", "set": "Books"}, "n": 2},
    {"meta": {"text": "c", "set": "Books"}, "n": 3},
]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_dots_lead_into_nested_fields(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_bytes(FORMATS[suffix](NESTED))
    assert read(file, text_field="meta.text") == ["a", "b", "c"]
    books = {"meta.set": ["Books", "Code"]}
    assert read(file, text_field="meta.text", where=books) == ["b", "c"]
    both = {"meta.set": ["Books"], "n": ["1", "2"]}
    assert read(file, text_field="meta.text", where=both) == ["b"]
    assert read(file, text_field="meta.text", where={"no.such": ["1"]}) == []
    assert "no field 'meta.body' (it has: meta, n)" in refusal(file, text_field="meta.body")


@pytest.mark.parametrize("suffix", FORMATS)
def test_where_keeps_some_records(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_bytes(FORMATS[suffix]([{"a.b": n, "text": str(n)} for n in range(5)]))
    assert read(file, where={"a.b": ["1", "3", "7"]}) == ["1", "3"]


def test_a_record_without_the_key_is_dropped_before_its_text_matters(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(json_lines([{"text": None, "lang": "de"}, {"text": "x", "lang": "en"}, {}]))
    assert read(file, where={"lang": ["en"]}) == ["x"]


def test_values_are_named_as_json_or_python_has_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    values = [True, False, None, 1, [True]]
    rows = [{"text": text, "ok": value} for text, value in zip("abcde", values, strict=True)]
    file.write_bytes(json_lines(rows))
    for name, found in (("true", "a"), ("False", "b"), ("null", "c"), ("1", "d")):
        assert read(file, where={"ok": [name]}) == [found]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_byte_order_marks(tmp_path: Path, suffix: str) -> None:
    content = {".txt": "hello\n", ".jsonl": '{"text": "hello"}\n', ".csv": "text\nhello\n"}[suffix]
    file = tmp_path / f"a{suffix}"
    file.write_bytes(content.encode("utf-8-sig"))
    assert read(file) == ["hello"]
    if suffix == ".jsonl":
        file.write_bytes(2 * content.encode("utf-8-sig") + b"\xef\xbb\xbf")
        assert read(file) == ["hello", "hello"]
    for encoding in ("utf-16", "utf-32"):
        file.write_bytes(content.encode(encoding))
        assert read(file) == ["hello"]
    file.write_bytes(content.encode("utf-16")[:-1])
    assert "cannot be read to its end: damaged UTF-16" in refusal(file)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_truncated_and_corrupt_compression(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix](json_lines([{"text": f"line {n * n}"} for n in range(9999)]))
    cut = tmp_path / f"cut.jsonl{suffix}"
    for share in (0.5, 0.99):
        cut.write_bytes(whole[: int(len(whole) * share)])
        assert "cut.jsonl" in refusal(cut)
        assert "cannot be read to its end" in refusal(cut)
    junk = tmp_path / f"junk.jsonl{suffix}"
    junk.write_bytes(b"this is not compressed at all, and long enough to tell" * 9)
    assert "cannot be read" in refusal(junk)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_what_follows_a_compressed_stream_is_read_or_refused(tmp_path: Path, suffix: str) -> None:
    first, second = (COMPRESS[suffix](json_lines([{"text": text}])) for text in ("one", "two"))
    file = tmp_path / f"a.jsonl{suffix}"
    for padding in (b"", b"\0" * 4, b"\0" * 200_000)[: 1 if suffix == ".zst" else 3]:
        file.write_bytes(first + padding + second + padding)
        assert read(file) == ["one", "two"]
    broken = bytes([second[0] ^ 1]) + second[1:]
    for rest in (broken, b"\0\0\0\0" + broken, second[:3], b"more" + second):
        file.write_bytes(first + rest)
        said = refusal(file)
        assert f"a.jsonl{suffix} cannot be read to its end" in said
        assert said.endswith("; restore it from a copy, or download it again")


@pytest.mark.parametrize("suffix", WHOLE)
def test_damaged_tables(tmp_path: Path, suffix: str) -> None:
    whole = FORMATS[suffix]([{"text": f"line {n * n}"} for n in range(9999)])
    file = tmp_path / f"a{suffix}"
    for content in (whole[: len(whole) // 2], b"no table at all", b"x"):
        file.write_bytes(content)
        assert f"a{suffix} cannot be read to its end" in refusal(file)
    not_utf8 = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfe\xfd\xfc")
    )
    file.write_bytes(FORMATS[suffix](pa.table({"text": not_utf8})))
    assert "UTF8" in refusal(file)


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_a_name_that_two_columns_have_is_refused(tmp_path: Path, suffix: str, mark: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_text("text,n,text\none,1,two\n".replace(",", mark))
    assert f"a{suffix}, line 1: 2 columns are named 'text'" in refusal(file)
    file.write_text("text,,\none,,\n".replace(",", mark))  # as spreadsheets write empty columns
    assert read(file) == ["one"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_values_that_are_not_text(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    rows: list[dict[str, Any]]
    rows = [{"text": "good", "n": 1, "title": "A"}, {"text": None, "n": 2, "title": "B"}]
    file.write_bytes(FORMATS[suffix](rows))
    place = "line" if suffix == ".jsonl" else "row"
    assert read(file) == ["good", ""]  # dropped later, and counted
    assert read(file, text_field="title") == ["A", "B"]
    assert f"{place} 1: field 'n' is int, not text" in refusal(file, text_field="n")
    lacking = "no field 'body' (it has: text, n, title); choose another with data.text_field=NAME"
    assert f"{place} 1: {lacking}" in refusal(file, text_field="body")


def test_broken_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text('{"text": "ok"}\n{"text": "cut off')
    assert "c.jsonl, line 2: not valid JSON" in refusal(file)
    file.write_text("1\n")
    assert "line 1: a JSON int, not an object" in refusal(file)
    file.write_text('{\n "text": "over several lines"\n}\n')
    assert "line 1: not valid JSON; each line must be one whole object" in refusal(file)
    file.write_text('{"a":' * 200_000)
    assert "line 1: not valid JSON" in refusal(file)


ARRAY = json_array([{"text": text, "n": [{"a": "]}"}, [1, "}"]]} for text in TEXTS * 9])


@pytest.mark.parametrize("piece", [5, 7, 1 << 16])
def test_arrays_of_json_objects_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(lines, "BUFFER", piece)
    file = tmp_path / "a.json"
    for content in (ARRAY, b"\xef\xbb\xbf \n" + ARRAY.replace(b"\n", b""), ARRAY + b"\n \n"):
        file.write_bytes(content)
        assert read(file) == TEXTS * 9


@pytest.mark.parametrize(
    "content", [ARRAY, b"\n \n" + json_lines([{"text": text} for text in TEXTS])]
)
def test_json_is_read_once_as_a_pipe_must_be(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.json"
    os.mkfifo(file)
    writer = threading.Thread(target=file.write_bytes, args=(content,), daemon=True)
    writer.start()
    texts = list(READERS[".json"](File(file, "a"), ReadOptions(), STOP))
    assert texts == TEXTS * (len(texts) // len(TEXTS))
    writer.join()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[1]", "record 1: cut off, or not an object"),
        ('[{"text": "a"}, "b"]', "record 2: cut off, or not an object"),
        ("[" * 200_000, "record 1: cut off, or not an object"),
        ('[{"a":' * 200_000, "record 1: cut off, or longer than"),
        ('[{"text": "a"', "record 1: cut off, or longer than"),
        ('[{"text": "a\\', "record 1: cut off, or longer than"),
        ('[{"text": "a"}', "cut off or broken after record 1"),
        ('[{"text": "a"} {"text": "b"}]', "cut off or broken after record 1"),
        ('[{"text": "a"},]', "record 2: cut off, or not an object"),
        ('[{"text": "a"}] x', "the file continues after the end of its array"),
        ('[{"text": a}]', "record 1: not valid JSON"),
        ('[{"text": "a"]]', "record 1: not valid JSON"),
        ('[{"body": "a"}]', "record 1: no field 'text' (it has: body)"),
    ],
)
def test_broken_arrays(tmp_path: Path, content: str, fault: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert f"a.json{', ' if fault.startswith('rec') else ': '}" in refusal(tmp_path / "a.json")
    assert fault in refusal(tmp_path / "a.json")


def test_an_array_is_read_object_by_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of 20 MB, no more than a few objects are in memory."""
    file = tmp_path / "a.json.gz"
    text = "word " * 2_000
    file.write_bytes(gzip.compress(json_array([{"text": text}] * 2_000), 1))
    part = opened(file).parts[0]
    tracemalloc.start()
    try:
        assert sum(map(len, part.documents())) == len(text) * 2_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(lines, "LARGEST", 9_000)
    assert "a.json.gz, record 1: cut off, or longer than 9,000 characters" in refusal(file)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("title,body\na,b\n", "line 1: no column 'text' (it has: title, body); name another"),
        ("text,n\na,1\nb\n", "line 3: 1 cell in a row, but 2 columns"),
        ("text,n\na,1,2\n", "line 2: 3 cells in a row, but 2 columns"),
        (
            "text\nA cell, unquoted.\n",
            "line 2: 2 cells in a row, but 1 column in the first line; a cell "
            "that contains a comma must be in quotation marks",
        ),
        (
            "text;n\na;1;2\n",
            "line 2: 3 cells in a row, but 2 columns in the first line; a cell that contains a "
            "semicolon must be in quotation marks",
        ),
        ('text,n\n"never closed,1\nb,2\n', "line 2: a broken row of 2 lines ("),
        ('text,n\n"a "word" here",1\n', "line 2: a broken row"),
    ],
)
def test_broken_csv(tmp_path: Path, content: str, fault: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert f"a.csv, {fault}" in refusal(tmp_path / "a.csv")


def test_binary_and_other_encodings(tmp_path: Path) -> None:
    binary = tmp_path / "a.txt"
    binary.write_bytes(bytes(range(256)) * 8)
    assert "binary" in refusal(binary)
    nul = tmp_path / "b.txt"
    nul.write_bytes(b"fine\n\nnot\0fine\n")
    assert "b.txt, line 3: a NUL character" in refusal(nul)
    latin = tmp_path / "c.jsonl.gz"
    latin.write_bytes(gzip.compress(b'{"text": "good"}\n{"text": "sch\xf6n"}\n'))
    assert "c.jsonl.gz, line 2: not UTF-8 text" in refusal(latin)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_field_of_what_is_null_is_null(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    rows: list[dict[str, Any]] = [
        {"meta": {"text": "first"}},
        {"meta": {"text": None}},
        {"meta": None},
    ]
    file.write_bytes(FORMATS[suffix](rows))
    assert read(file, text_field="meta.text") == ["first", "", ""]


@pytest.mark.parametrize("suffix", WHOLE)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    file.write_bytes(FORMATS[suffix](table))
    assert refusal(file).endswith(
        f"a{suffix}: 2 columns are named 'text'; rename or remove all but one"
    )
