from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from crammed.data import python_docs
from crammed.data.sources import Documents, open_sources
from crammed.errors import InputError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def read(*names: Path | str, documents: Documents = "blank-line", field: str = "text") -> list[str]:
    sources = open_sources([str(name) for name in names], documents, field)
    return [text for source in sources for text in source.documents()]


def refusal(*names: Path | str, field: str = "text") -> str:
    with pytest.raises(InputError) as caught:
        read(*names, field=field)
    return str(caught.value)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_format_and_compression(tmp_path: Path, suffix: str) -> None:
    texts = ["One, schön.", "Two\nlines.", "Three."]
    lines = "".join(json.dumps({"text": t, "other": 1}) + "\n" for t in texts)
    jsonl = tmp_path / f"a.jsonl{suffix}"
    jsonl.write_bytes(COMPRESS[suffix](lines.encode()))
    assert read(jsonl) == texts
    plain = tmp_path / f"b.txt{suffix}"
    plain.write_bytes(COMPRESS[suffix](b"First\nstill.\n\n\nSecond.\n"))
    assert read(plain) == ["First\nstill.\n", "Second.\n"]
    assert read(plain, documents="file") == ["First\nstill.\n\n\nSecond.\n"]
    assert [t for t in read(plain, documents="line") if t.strip()] == [
        "First\n",
        "still.\n",
        "Second.\n",
    ]


def test_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("sub/z.txt", "b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "ignored.png").write_bytes(b"\x89PNG")
    assert read(tmp_path) == ["a.txt", "b.txt", "sub/z.txt"]


def test_another_field_of_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "hello"}\n\n')
    assert read(file, field="body") == ["hello"]
    assert "data.text_field" in refusal(file)
    assert "body" in refusal(file)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfhello\n")
    assert read(file) == ["hello\n"]


def test_missing_empty_and_unknown(tmp_path: Path) -> None:
    assert "no data" in refusal()
    assert "no such data" in refusal(tmp_path / "none.txt")
    assert "holds no .txt or .jsonl" in refusal(tmp_path)
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert "is empty" in refusal(empty)
    (tmp_path / "a.docx").write_text("x")
    assert "no known format" in refusal(tmp_path / "a.docx")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_truncated_and_corrupt_files_are_named(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix]("".join(f'{{"text": "line {n * n}"}}\n' for n in range(9999)).encode())
    cut = tmp_path / f"cut.jsonl{suffix}"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.jsonl" in refusal(cut)
    assert "cannot be read to its end" in refusal(cut)
    junk = tmp_path / f"junk.jsonl{suffix}"
    junk.write_bytes(b"this is not compressed at all, and long enough to tell" * 9)
    assert "cannot be read" in refusal(junk)


def test_binary_and_broken_lines_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "a.txt"
    binary.write_bytes(bytes(range(256)) * 8)
    assert "binary" in refusal(binary)
    nul = tmp_path / "b.txt"
    nul.write_bytes(b"fine\n\nnot\0fine\n")
    assert "line 3" in refusal(nul)
    lines = tmp_path / "c.jsonl"
    lines.write_text('{"text": "ok"}\n{"text": "cut off')
    assert "line 2: not valid JSON" in refusal(lines)
    lines.write_text("[1]\n")
    assert "line 1: no text" in refusal(lines)


@pytest.fixture(scope="module")
def few_docs() -> list[python_docs.Docstring]:
    return list(python_docs.docstrings("corpus", 200_000, 50_000))


def test_python_docs_are_the_same_every_time(few_docs: list[python_docs.Docstring]) -> None:
    again = list(python_docs.docstrings("corpus", 200_000, 50_000))
    assert again == few_docs
    assert sum(len(d.text) for d in few_docs) >= 200_000
    assert len({d.package for d in few_docs}) > 5


def test_python_docs_share_no_file_with_the_tasks(few_docs: list[python_docs.Docstring]) -> None:
    tasks = list(python_docs.docstrings("tasks", 200_000, 50_000))
    shared = {d.text for d in few_docs} & {d.text for d in tasks}
    # Different files may hold the same words (copied functions), but hardly ever do.
    assert len(shared) < 0.02 * len(tasks)


def test_python_docs_fingerprint_names_versions_and_no_folder() -> None:
    fingerprint = python_docs.PythonDocs().fingerprint()
    assert "torch" in fingerprint["packages"]
    assert "/" not in "".join(fingerprint["packages"].values())
