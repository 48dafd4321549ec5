"""Tables as programs write them: what separates their cells, and whether these are quoted."""

from __future__ import annotations

import csv
import io
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from crammed.formats.lines import Faults, File
from crammed.formats.tables import csv_records, tabbed_records, tsv_records
from support.samples import arrow, opened, parquet, read, refusal

TEXTS = [
    "Der Hund; die Katze, das Haus.",
    'Er sagte: "Nein", und ging.',
    "A plain sentence",
    "a\ttab",
    "two\nlines, here",
    "1,5 Mio. Euro; 3,4 %",
    "Größe: „gut“",
    'ends with "quote"',
    '"Yes."',
    "long, " * 50,
]
BARE = ["a b", "c, d", "e; f"] * 9


def _written(texts: Sequence[str], mark: str, end: str, value: str = "1", **options: Any) -> str:
    """As pandas and spreadsheets write tables: only the cells that need it are quoted."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=mark, lineterminator=end, **options)
    writer.writerows([("", "text", "wert"), *((n, text, value) for n, text in enumerate(texts))])
    return sink.getvalue()


def _plain(columns: Sequence[str], cells: Sequence[str], mark: str) -> str:
    rows = [mark.join(columns), *(mark.join((text, "1")) for text in cells)]
    return "\n".join(rows) + "\n"


def _r(texts: Sequence[str], mark: str) -> str:
    """As R's write.table(qmethod="double") writes tables: all strings are quoted."""
    rows = [("id", "text"), *enumerate(texts)]
    quoted = [
        mark.join(
            '"' + cell.replace('"', '""') + '"' if isinstance(cell, str) else str(cell)
            for cell in row
        )
        for row in rows
    ]
    return "\n".join(quoted) + "\n"


GLUE = [
    "hide new secretions",
    "\" it 's great",
    'a " quoted " word',
    '"all of it"',
    'What is 2" long',
]
SAMPLES: dict[str, tuple[str, list[str]]] = {
    "pandas.csv": (_written(TEXTS, ",", "\n", "1.5"), TEXTS),
    "pandas.tsv": (_written(TEXTS, "\t", "\n", "1.5"), TEXTS),
    "pandas-all.tsv": (_written(TEXTS, "\t", "\n", quoting=csv.QUOTE_ALL), TEXTS),
    "r.csv": (_r(TEXTS, ","), TEXTS),
    "r2.csv": (_r(TEXTS, ";"), TEXTS),
    "r.tsv": (_r(TEXTS, "\t"), TEXTS),
    "r-bare.tsv": (_r(BARE, "\t"), BARE),
    "excel.csv": (_written(TEXTS, ",", "\r\n"), TEXTS),
    "excel-german.csv": ("\ufeff" + _written(TEXTS, ";", "\r\n", "1,5"), TEXTS),
    "excel-unicode.tsv": (_written(TEXTS, "\t", "\r\n", "1,5"), TEXTS),
    "libreoffice-tab.csv": (_written(TEXTS, "\t", "\n"), TEXTS),
    "pipe.csv": (_written(TEXTS, "|", "\n"), TEXTS),
    "short.csv": (
        "text;label\r\nEin Satz, mit Komma, und noch eins.;1\r\n",
        ["Ein Satz, mit Komma, und noch eins."],
    ),
    "one-column.csv": ('text\n"Ein Satz, mit Komma; ja"\nb\n', ["Ein Satz, mit Komma; ja", "b"]),
    "marks-in-a-name.csv": ('text,"one of: a|b|c|d"\nOne; two.,1\n', ["One; two."]),
    "old-mac.csv": (_written(TEXTS[:3], ";", "\r"), TEXTS[:3]),
    "sst2.tsv": (_plain(("text", "label"), GLUE * 9, "\t"), GLUE * 9),
    "quoted-sentences.tsv": (
        _plain(("text", "label"), ['"Yes."', "no", '"No, it is."'], "\t"),
        ['"Yes."', "no", '"No, it is."'],
    ),
    "closed-two-rows-later.tsv": (
        'n\ttext\n1\t"To begin so,\r\n2\tand to go on\n3\tended"\n',
        ['"To begin so,', "and to go on", 'ended"'],
    ),
    "never-closed.tsv": (
        _plain(("text", "label"), ['"So', "no", 'a ""b"" c'], "\t"),
        ['"So', "no", 'a ""b"" c'],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_tables_of_many_programs(tmp_path: Path, name: str) -> None:
    content, texts = SAMPLES[name]
    (tmp_path / name).write_text(content, "utf-8", newline="")
    assert read(tmp_path / name) == texts
    (tmp_path / name).write_text(content.removeprefix("\ufeff"), "utf-16", newline="")
    assert read(tmp_path / name) == texts, "as Excel saves Unicode text"


def test_tables_of_tasks_are_never_quoted(tmp_path: Path) -> None:
    """What `tabbed_records` takes for quoted, a task still reads byte for byte."""
    file = File(tmp_path / "a.tsv", "a.tsv")
    file.path.write_text('text\tlabel\n"a ""b"" c"\t1\n')
    assert [record["text"] for _, record in tsv_records(file)] == ['"a ""b"" c"']
    assert [record["text"] for _, record in tabbed_records(file, Faults(), "text")] == ['a "b" c']


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "records"), [("a.csv", csv_records), ("a.tsv", tsv_records)])
def test_a_blank_line_is_an_empty_cell_of_an_only_column(
    tmp_path: Path, name: str, records: Any, end: str
) -> None:
    """At the end of a file it is none; a corpus, and a table of several columns, ignore it."""
    file = File(tmp_path / name, name)
    lines = ["", "text", "", "One.", "", "", "Two.", "", ""]
    file.path.write_text(end.join(lines), newline="")
    numbers = {3: "", 4: "One.", 5: "", 6: "", 7: "Two."}
    assert list(records(file)) == [(f"{name}, line {n}", {"text": t}) for n, t in numbers.items()]
    assert read(file.path) == ["One.", "Two."]
    mark = "," if name == "a.csv" else "\t"
    file.path.write_text(end.join(f"{line}{mark}1" if line else "" for line in lines), newline="")
    assert [record["text"] for _, record in records(file)] == ["One.", "Two."]


def test_a_table_without_names_of_columns(tmp_path: Path) -> None:
    for name, mark in (("a.csv", ";"), ("a.tsv", "\t")):
        (tmp_path / name).write_text("1;Der erste Satz.\n2;Der zweite Satz.\n".replace(";", mark))
        said = refusal(tmp_path / name)
        assert f"{name}, line 1: no column 'text' (it has: 1, Der erste Satz.)" in said
        assert (
            "data.text_field=NAME or, if this line is a row already, by the column's number" in said
        )
        assert read(tmp_path / name, text_field="2") == ["Der erste Satz.", "Der zweite Satz."]
        assert read(tmp_path / name, text_field="2", where={"1": ["2"]}) == ["Der zweite Satz."]
        assert "no column '3'" in refusal(tmp_path / name, text_field="3")
    first, second = "red; green; blue; white", "black; grey"
    (tmp_path / "a.csv").write_text(f'2,"{first}"\n1,"{second}"\n')  # 2 is no name here, and
    assert read(tmp_path / "a.csv", text_field="2") == [first, second]
    (tmp_path / "a.csv").write_text(f'2,1\n"{first}","{second}"\n')  # here it is
    assert read(tmp_path / "a.csv", text_field="2") == [first]


def test_a_table_of_a_windows_program_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text;wert\nGröße;1\n".encode("cp1252"))
    assert "line 2: not UTF-8 text" in refusal(tmp_path / "a.csv")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in refusal(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("bad", [b"\xff", b'\xff"\n2,"\xff', b"x" * 3_000])
def test_a_bad_line_within_a_cell_drops_its_row_alone(
    tmp_path: Path, name: str, bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.formats.lines.LARGEST", 2_000)
    row = b'1,"begins\n%b\nfragment,of it\nends"\n' % bad
    content = b'"n","text"\n0,"first"\n' + row + b'2,"a ""last"" one"\n'
    (tmp_path / name).write_bytes(content.replace(b",", b"," if name == "a.csv" else b"\t"))
    faults = Faults(skip=True)
    texts = list(opened(tmp_path / name).parts[0].documents(faults))
    assert texts == ["first", 'a "last" one']
    assert faults.records == row.count(b'"\n')
    assert f"{name}, line 4: " in faults.first == refusal(tmp_path / name)


def test_white_space_around_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id, text , lang\n1,One.,en\n2,Zwei.,de\n")
    assert read(tmp_path / "a.csv", where={"lang": ["en"]}) == ["One."]
    assert read(tmp_path / "a.csv", text_field=" text ") == ["One.", "Zwei."]
    (tmp_path / "a.csv").write_text(" text,text \nOne.,Two.\n")
    assert "2 columns are named 'text'" in refusal(tmp_path / "a.csv")


@pytest.mark.parametrize(("name", "write"), [("a.parquet", parquet), ("a.arrow", arrow)])
def test_text_that_is_stored_as_bytes(tmp_path: Path, name: str, write: Any) -> None:
    columns = {"text": [b"One.", "schön".encode(), None], "lang": [b"en", b"de", b"en"]}
    (tmp_path / name).write_bytes(write(pa.table(columns)))
    assert read(tmp_path / name) == ["One.", "schön", ""]
    assert read(tmp_path / name, where={"lang": ["de"]}) == ["schön"]
    (tmp_path / name).write_bytes(write(pa.table({"text": ["schön".encode("latin-1")]})))
    assert f"{name}, row 1: field 'text' is not UTF-8; convert it" in refusal(tmp_path / name)


@pytest.mark.parametrize("head", [b"te\xffxt,n", b'"te"xt",n'])
def test_a_row_never_names_the_columns_in_place_of_a_damaged_header(
    tmp_path: Path, head: bytes
) -> None:
    (tmp_path / "a.csv").write_bytes(head + b"\ntext,8\nTwo.,9\n")
    for unreadable in ("stop", "skip"):
        assert "a.csv, line 1: " in refusal(tmp_path / "a.csv", unreadable=unreadable)
    assert read(tmp_path / "a.csv", unreadable="skip", text_field="1") == ["text", "Two."]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_cell_that_nothing_ends_does_not_fill_the_memory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.formats.lines.LARGEST", 2_000)
    letters = string.ascii_letters * 10 + "\n"
    (tmp_path / name).write_text('text\n"' + letters * 10)
    wrong = "field larger than field limit" if name == "a.csv" else ""
    if wrong:
        assert wrong in refusal(tmp_path / name)
    (tmp_path / name).write_text("text\n" + letters[:-1] * 9 + "\n")
    assert f"{name}, line 2: longer than 2,000 bytes" in refusal(tmp_path / name)


def test_a_cell_that_is_not_closed_is_named_by_its_first_line(tmp_path: Path) -> None:
    """All lines that it takes in are counted, up to the next quotation mark or the last line."""
    written = ["text,n", *(f"One more,{number}" for number in range(2, 1_001))]
    written[2] = f'"{written[2]}'
    file = tmp_path / "a.csv"
    for lost in (998, 498):
        if lost == 498:
            written[499] = 'He said "no",500'
        file.write_text("\n".join(written))
        place = f"a.csv, line 3: a broken row of {lost} lines ("
        assert place in refusal(file)
        faults = Faults(skip=True)
        texts = list(opened(file).parts[0].documents(faults))
        assert (faults.records, len(texts)) == (lost, 999 - lost)
        assert place in faults.first
