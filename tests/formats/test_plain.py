"""Plain text: what ends a line, what one document of it is, and how long either may be."""

from __future__ import annotations

import gzip
import itertools
import random
import tracemalloc
from pathlib import Path

import pytest

from crammed.config import DataConfig
from crammed.data.preparing.read.source import describe_reading, open_sources
from crammed.formats import lines
from crammed.formats.blocks import line_blocks
from crammed.formats.documents import ReadOptions, read_block
from crammed.formats.lines import STOP, Faults, File
from crammed.formats.plain import SMALL, choose_documents
from support.samples import COMPRESS, opened, read, refusal

WORDS = ["the", "old", "sailor", "counts", "seven", "lanterns", "while", "a", "quiet", "girl"]


def _sentences(count: int, least: int = 5, most: int = 30, end: str = ".") -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(WORDS, k=draw.randint(least, most))) + end for _ in range(count)]


LINES = ["One.", "Still one.", "", "Two.", " ", "", "Three,", "and more."]
PARAGRAPHS = ["One.\nStill one.", "Two.", "Three,\nand more."]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r", "mixed"])
@pytest.mark.parametrize("piece", [1, 3, 1 << 16])
def test_line_ends_of_every_system(
    tmp_path: Path, ends: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.formats.streams.BUFFER", piece)
    text = ends.join(LINES)
    if ends == "mixed":
        cycle = ("\r", "\r\n", "\n")
        text = "".join(line + cycle[number % 3] for number, line in enumerate(LINES))
    (tmp_path / "a.txt").write_text(text, "utf-8", newline="")
    found = read(tmp_path / "a.txt", documents="blank-line")
    assert [each.replace("\r\n", "\n") for each in found] == PARAGRAPHS
    assert len(read(tmp_path / "a.txt", documents="line")) == len(LINES)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a"}}{ends}{{"text": "b"}}{ends}', newline="")
    if ends != "mixed":
        assert read(tmp_path / "a.jsonl") == ["a", "b"]


@pytest.mark.parametrize("returns", [2, 3])
@pytest.mark.parametrize("piece", [1, 3, 1 << 16])
def test_several_carriage_returns_before_a_line_feed_end_one_line(
    tmp_path: Path, returns: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crammed.formats.streams.BUFFER", piece)
    end = "\r" * returns + "\n"
    (tmp_path / "a.txt").write_text(end.join(LINES), "utf-8", newline="")
    assert read(tmp_path / "a.txt", documents="blank-line") == PARAGRAPHS
    assert len(read(tmp_path / "a.txt", documents="line")) == len(LINES)
    (tmp_path / "a.txt").write_text("a" + "\r" * 100 + "b", newline="")
    assert len(read(tmp_path / "a.txt", documents="line")) == 101


def test_other_separators_are_characters_like_any(tmp_path: Path) -> None:
    """U+2028, U+2029, U+0085, form feeds and the like end no line."""
    text = "a\u2028b\u2029\u2029c\x85\x85d\x0b\x0ce\x1c\x1df"
    for documents in ("line", "blank-line", "auto"):
        (tmp_path / "a.txt").write_text(text + "\n", "utf-8")
        assert read(tmp_path / "a.txt", documents=documents) == [text]


@pytest.mark.parametrize(
    ("content", "chosen"),
    [
        ("One.\n\nTwo.\n", "blank-line"),
        ("\n\n  \nOne,\ntwo.\n\n", "file"),
        ("A short\nletter.\n", "file"),
        ("\n".join(_sentences(30)), "line"),
        ("\n".join(_sentences(30, end="")), "file"),
        ("\n".join(_sentences(30, end="\u3002")), "line"),
        ("\n".join(_sentences(30, end='."')), "line"),
        ("\n".join(_sentences(9_000, end="")), "line"),
        ("\n".join(_sentences(9_000, 12, 13, end="")), "file"),
        (" ".join(_sentences(9_000)), "line"),
        ("\n".join(_sentences(9_000)) + "\n\nlate", "line"),
        ("\n\n".join(_sentences(9_000)), "blank-line"),
    ],
)
def test_what_a_document_is_by_the_look_of_a_file(
    tmp_path: Path, content: str, chosen: str
) -> None:
    (tmp_path / "a.txt").write_text(content)
    assert choose_documents(File(tmp_path / "a.txt", "a.txt")) == chosen
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
    assert choose_documents(File(tmp_path / "a.txt.gz", "a.txt.gz")) == chosen
    assert opened(tmp_path / "a.txt").parts[0].options.documents == chosen  # type: ignore[attr-defined]


def test_small_files_of_a_folder_are_documents(tmp_path: Path) -> None:
    """A single file, and a large one, are cut where they always were; a line says so."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("One.\n\nTwo.\n")
    assert read(tmp_path / "a.txt") == ["One.", "Two."]
    assert read(tmp_path) == ["One.\n\nTwo."] * 2
    assert read(tmp_path, documents="blank-line") == ["One.", "Two."] * 2
    assert opened(tmp_path).reading != opened(tmp_path / "a.txt").reading
    (tmp_path / "c.txt").write_text("Large.\n\n" + "x" * SMALL)
    (tmp_path / "d.jsonl").write_text('{"text": "no file of text"}\n')
    assert read(tmp_path)[:3] == ["One.\n\nTwo.", "One.\n\nTwo.", "Large."]

    def said(**data: object) -> list[str]:
        config = DataConfig.model_validate({"sources": [str(tmp_path)], **data})
        return list(describe_reading(open_sources(config), config))

    assert said() == [
        "2 text files taken as one document each, 1 text file cut into documents at blank lines; "
        "data.documents=blank-line, line or file changes it"
    ]
    assert said(documents="file") == []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).unlink()
    assert said() == [
        "1 text file cut into documents at blank lines; data.documents=line or file changes it"
    ]


def test_a_line_and_a_document_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LARGEST", 1_000)
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a"}\n{"text": "%s"}\n{"text": "b"}' % ("x" * 1_000)
    )
    assert "a.jsonl, line 2: longer than 1,000 bytes" in refusal(tmp_path / "a.jsonl")
    assert read(tmp_path / "a.jsonl", unreadable="skip") == ["a", "b"]
    (tmp_path / "a.txt").write_text("a\n\n" + "x\n" * 600 + "\nb\n")
    said = refusal(tmp_path / "a.txt", documents="blank-line")
    assert "a document of more than 1,000 characters; cut it with data.documents=line" in said
    assert read(tmp_path / "a.txt", documents="blank-line", unreadable="skip") == ["a", "b"]
    assert len(read(tmp_path / "a.txt", documents="line")) == 604
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"x" * 1_005 + b"\n\nb\n")
    assert "a.txt, line 1: longer than 1,000 bytes" in refusal(tmp_path / "a.txt")
    assert read(tmp_path / "a.txt", documents="blank-line", unreadable="skip") == ["b"]


def test_gzipped_zeros_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGEST", 1 << 18)
    zeros = gzip.compress(bytes(1 << 24))
    for name in ("a.txt.gz", "a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.md.gz", "a.html.gz"):
        (tmp_path / name).write_bytes(zeros)
        tracemalloc.start()
        try:
            assert name in refusal(tmp_path / name)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_a_damaged_line_spoils_its_document_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"One.\n\nTwo\nsch\xf6n.\n\nThree\0.\n\nFour.\n")
    assert read(file, documents="blank-line", unreadable="skip") == ["One.", "Four."]
    assert read(file, documents="line", unreadable="skip") == ["One.", "", "Two", "", "", "Four."]
    assert "a.txt, line 4: not UTF-8 text" in refusal(file, documents="file", unreadable="skip")
    faults = Faults(skip=True)
    list(opened(file, documents="blank-line").parts[0].documents(faults))
    assert (faults.records, faults.first.partition(":")[0]) == (2, "a.txt, line 4")


@pytest.mark.parametrize("documents", ["blank-line", "line"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("limit", [60, 1 << 20])
def test_blocks_hold_what_the_whole_file_does(
    tmp_path: Path, documents: str, ends: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is read in blocks of any size gives the same documents and faults."""
    monkeypatch.setattr(lines, "LARGEST", limit)
    draw = random.Random(limit)
    pieces = ["a", "b b", "", "", " \t", "long " * 20, "\xe9t\xe9", "\xe9" * 15, "x" * 200]
    pieces += ["\u3000", "\u00a0", "\x0b\x1c\x85\u2028", " " * 200]
    text = ends.join(draw.choices(pieces, k=300))
    data = text.encode().replace(b"b b", b"b \xff", 3)
    (tmp_path / "a.txt").write_bytes(data)
    file = File(tmp_path / "a.txt", "a.txt")
    options = ReadOptions(documents=documents)  # type: ignore[arg-type]
    whole = Faults(skip=True)
    texts = list(opened(file.path, documents=documents).parts[0].documents(whole))
    assert texts
    for size in (1, 7, 100, 10_000):
        by_paragraph = documents == "blank-line"
        cut = line_blocks(file, size, to_blank_line=by_paragraph, plain=True)
        faults = Faults(skip=True)
        blocks = list(cut)
        found = [
            text for each in blocks for text in read_block(each, file, ".txt", options, faults)
        ]
        assert found == texts
        assert (faults.records, faults.first) == (whole.records, whole.first)
        assert len(blocks) > 1 or size == 10_000


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000\u3000", " \u2003"])
def test_lines_that_only_unicode_calls_blank_end_blocks(
    tmp_path: Path, blank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost that is longer than a document may be, nor of what comes before damage."""
    texts = _sentences(3_000)
    data = f"\n{blank}\n".join(texts).encode()
    file, cut = (File(tmp_path / name, name) for name in ("a.txt", "a.txt.gz"))
    file.path.write_bytes(data)
    assert choose_documents(file) == "blank-line"
    whole = gzip.compress(data)
    cut.path.write_bytes(whole[: len(whole) * 2 // 3])
    options = ReadOptions(documents="blank-line")
    (block,) = itertools.islice(line_blocks(cut, 1 << 20, to_blank_line=True, plain=True), 1)
    found = list(read_block(block, cut, ".txt", options, STOP))
    assert found == texts[: len(found)]
    assert len(found) > 1_000
    monkeypatch.setattr(lines, "LARGEST", 500)
    blocks = list(line_blocks(file, 1_000, to_blank_line=True, plain=True))
    parts = [read_block(each, file, ".txt", options, STOP) for each in blocks]
    assert list(itertools.chain(*parts)) == texts


@pytest.mark.parametrize("suffix", [each for each in COMPRESS if each])
def test_compression_is_found_without_its_suffix(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(COMPRESS[suffix](b'{"text": "a"}\n'))
    assert read(tmp_path / "a.jsonl") == ["a"]
    (tmp_path / "a").write_bytes(COMPRESS[suffix](b"One.\n\nTwo.\n"))
    assert read(tmp_path / "a") == ["One.", "Two."]
