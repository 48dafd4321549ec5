"""The files in archives are read like those in a folder; none is written to disk."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crammed.formats import lines
from crammed.formats.lines import Faults
from crammed.formats.streams import BUFFER
from support.samples import (
    COMPRESS,
    FILES,
    json_lines,
    opened,
    parquet,
    read,
    refusal,
    tarred,
    zipped,
)

TEXTS = ["One.\n\nStill one.", "Two.", "Three."]
MORE = {
    **FILES,
    ".hidden/x.txt": b"hidden",
    "__MACOSX/a.txt": b"hidden",
    "picture.png": b"\x89PNG\0",
    "settings.json": b'{\n "a": 1\n}',
    "rows.json": b'{"text": "Four."}\n',
    "README": b"Five.\n",
    "program": b"\x7fELF\0\0",
    "verse": b"Half a league onward,\nAll in the valley of Death,\n",  # as many commas: no table
    "page.md": b"*Six*",
    "more.csv.gz": COMPRESS[".gz"](b"n;text\n1;Seven.\n"),
}
VERSE = "Half a league onward,\nAll in the valley of Death,"
ALL = [*TEXTS, "Four.", "Five.", VERSE, "Six", "Seven."]


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.tar.xz"])
def test_the_files_of_an_archive(tmp_path: Path, name: str) -> None:
    compress = COMPRESS[".gz" if name == "a.tgz" else "".join(Path(name).suffixes[1:])]
    content = zipped(MORE) if name == "a.zip" else compress(tarred(MORE))
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) == ALL
    assert read(tmp_path / name, documents="blank-line")[:2] == ["One.", "Still one."]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    whole = len(content.rstrip(b"\0"))
    for size in (whole // 3, whole // 2, whole - 1):
        (tmp_path / name).write_bytes(content[:size])
        assert name in refusal(tmp_path / name)


@pytest.mark.parametrize("make", [zipped, tarred])
def test_names_that_lead_elsewhere_lead_nowhere(tmp_path: Path, make: Any) -> None:
    files = {"../up.txt": b"up", "/etc/x.txt": b"root", "a\x1b[1m.jsonl": b"{"}
    (tmp_path / "a.tar").write_bytes(make(files))
    suffix = "zip" if make is zipped else "tar"
    said = refusal(tmp_path / "a.tar", format=suffix)
    assert r"a.tar/a\x1b[1m.jsonl, line 1: not valid JSON" in said
    assert read(tmp_path / "a.tar", format=suffix, unreadable="skip") == ["up", "root"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("name", ["table.parquet", "inner.zip", "inner.tar.gz"])
def test_what_cannot_be_read_inside_an_archive_is_named(tmp_path: Path, name: str) -> None:
    content = parquet([{"text": "no"}]) if name == "table.parquet" else zipped(FILES)
    (tmp_path / "a.zip").write_bytes(zipped({"a.txt": b"a", name: content}))
    assert f"a.zip/{name} cannot be read inside an archive: unpack it" in refusal(
        tmp_path / "a.zip"
    )
    assert read(tmp_path / "a.zip", unreadable="skip") == ["a"]


def test_links_in_archives_are_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        entry = tarfile.TarInfo("a.txt")
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"a\n"))
    assert read(tmp_path / "a.tar") == ["a"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped_links:
        linked = zipfile.ZipInfo("link.txt")
        linked.external_attr = 0o120777 << 16
        zipped_links.writestr(linked, "/etc/passwd")
        zipped_links.writestr("a.txt", "a")
    assert read(tmp_path / "a.zip") == ["a"]


def test_an_archive_of_nothing_known(tmp_path: Path) -> None:
    for name, make in (("a.zip", zipped), ("a.tar", tarred)):
        (tmp_path / name).write_bytes(make({"a.png": b"x"}))
        assert f"{name} holds no file of a known format" in refusal(tmp_path / name)


@pytest.mark.parametrize("make", [zipped, tarred])
def test_json_without_text_beside_text_is_left_out(tmp_path: Path, make: Any) -> None:
    """As in a folder (tests/data/preparing/test_sources.py)."""
    archive = tmp_path / ("a.zip" if make is zipped else "a.tar")
    files = {
        "in/manifest.json": b'[{"source": "a"}]',
        "in/b.json": b'{"c": 1}\n',
        "README.md": b"x",
    }
    archive.write_bytes(make(files))
    assert "a/in/manifest.json, record 1: no field 'text' (it has: source)" in refusal(
        archive
    ).replace(archive.name, "a")
    rows = {
        "rows.json.gz": COMPRESS[".gz"](b'{"text": "Row."}\n'),
        "null.json": b'{"text": null}\n',
    }
    archive.write_bytes(make({**files, **rows}))
    for unreadable in ("stop", "skip"):
        assert read(archive, unreadable=unreadable) == ["x", "Row.", ""]
    faults = Faults()
    list(opened(archive).parts[0].documents(faults))
    assert faults == Faults(
        ignored=Counter({".json without the field of text, such as in/manifest.json": 2})
    )


@pytest.mark.parametrize("make", [zipped, tarred])
def test_what_describes_records_is_not_filtered(tmp_path: Path, make: Any) -> None:
    archive = tmp_path / ("a.zip" if make is zipped else "a.tar")
    about = {"LICENSE": b"Free.", "README.md": b"About it."}
    rows = {"rows.jsonl": b'{"text": "One.", "n": 1}\n{"text": "Two.", "n": 2}\n'}
    archive.write_bytes(make({**about, **rows}))
    assert read(archive) == ["Free.", "About it.", "One.", "Two."]
    assert read(archive, where={"n": ["2"]}) == ["Two."]
    faults = Faults()
    list(opened(archive, where={"n": ["2"]}).parts[0].documents(faults))
    assert faults.ignored == {"without fields for `where`": 2}
    archive.write_bytes(make(about))
    assert "no file with fields for `where` that can be" in refusal(archive, where={"n": ["2"]})
    archive.write_bytes(make({**rows, "a.txt": b"Text."}))
    assert f"{archive.name}/a.txt has no fields" in refusal(archive, where={"n": ["2"]})


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_large_files_of_records_are_recognised(tmp_path: Path, make: Any, suffix: str) -> None:
    texts = [hashlib.sha512(bytes([number])).hexdigest() * 8 for number in range(256)]
    rows = [{"text": text[::step]} for step in range(1, 8) for text in texts]  # hardly compressible
    content = COMPRESS[suffix](json_lines(rows))
    archive = tmp_path / ("a.zip" if make is zipped else "a.tar")
    archive.write_bytes(make({f"rows.json{suffix}": content, f"dump{suffix}": content}))
    assert len(content) > BUFFER
    assert read(archive) == [row["text"] for row in rows] * 2


def test_one_damaged_file_of_an_archive(tmp_path: Path) -> None:
    """The others are read, the damaged one is counted; a broken header hides what follows."""
    whole = bytearray(zipped({"a.txt": b"aaaa", "b.txt": b"bbbb", "c.txt": b"cccc"}))
    whole[whole.index(b"b.txt") + 6] ^= 255
    (tmp_path / "a.zip").write_bytes(whole)
    assert "a.zip/b.txt cannot be read to its end" in refusal(tmp_path / "a.zip")
    assert read(tmp_path / "a.zip", unreadable="skip") == ["aaaa", "cccc"]
    whole = bytearray(tarred({name: name.encode() * 5000 for name in ("a.txt", "b.txt", "c.txt")}))
    whole[whole.index(b"b.txt\0") + 100] ^= 255
    (tmp_path / "a.tar").write_bytes(whole)
    said = refusal(tmp_path / "a.tar")
    assert "a.tar cannot be read to its end" in said
    assert said.endswith("; restore it from a copy, or download it again")
    assert read(tmp_path / "a.tar", unreadable="skip") == ["a.txt" * 5000]


@pytest.mark.parametrize(("find", "left"), [(bytes.index, ["bbbb"]), (bytes.rindex, [])])
def test_a_name_that_is_not_utf_8(tmp_path: Path, find: Any, left: list[str]) -> None:
    """Where the file begins, or in the list of all files at the end."""
    whole = zipped({"\xe9.txt": b"aaaa", "b.txt": b"bbbb"})
    at = find(whole, "\xe9.txt".encode())
    (tmp_path / "a.zip").write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    assert "a.zip" in refusal(tmp_path / "a.zip")
    if left:
        assert read(tmp_path / "a.zip", unreadable="skip") == left


def test_archives_made_to_do_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "a.tar.gz").write_bytes(
        COMPRESS[".gz"](header.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20))
    )
    assert "a header that is too long" in refusal(tmp_path / "a.tar.gz")
    content = bytearray(zipped({"a.txt": b"a" * 999, "b.txt": b"b" * 999}))
    for at in (content.index(b"PK\x01\x02"), content.rindex(b"PK\x01\x02")):
        struct.pack_into("<I", content, at + 20, 1 << 20)
    (tmp_path / "a.zip").write_bytes(content)
    assert "files overlap in it" in refusal(tmp_path / "a.zip")
    monkeypatch.setattr(lines, "LARGEST", 5_000)
    (tmp_path / "b.zip").write_bytes(zipped({"a.txt": bytes(1_000_000), "b.txt": b"b"}))
    assert "b.zip/a.txt, line 1: longer than 5,000 bytes" in refusal(tmp_path / "b.zip")
    assert read(tmp_path / "b.zip", unreadable="skip") == ["b"]


def test_an_encrypted_file_is_named(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.txt": b"a", "b.txt": b"b"}))
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + at] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "a.zip, 'a.txt': encrypted" in refusal(tmp_path / "a.zip")
    assert read(tmp_path / "a.zip", unreadable="skip") == ["b"]
