"""Corpora at an address: in memory, in a local file system and on a web server of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from crammed.data.corpus import Corpus
from crammed.data.elsewhere import receive, send
from crammed.errors import InputError
from crammed.formats.remote import Remote
from crammed.terminal.progress import SILENT
from support.command import crammed
from support.corpora import numbered_files, write_corpus
from support.web import serving


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpus", numbered_files([3, 5]))


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://corpora/mine"
    fsspec.filesystem("memory").rm("/corpora", recursive=True)


def content(corpus: Corpus) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in corpus.path.iterdir()}


def test_a_corpus_there_and_back(tmp_path: Path, corpus: Corpus, memory: str) -> None:
    for number, address in enumerate((memory, f"file://{tmp_path}/there")):
        send(corpus, address, SILENT)
        send(corpus, address, SILENT)  # repeated, as after a kill
        assert content(receive(address, tmp_path / f"back-{number}", SILENT)) == content(corpus)
    with serving(corpus.path.parent) as (web, _):
        assert content(receive(f"{web}/corpus", tmp_path / "back", SILENT)) == content(corpus)


def test_the_manifest_comes_last(corpus: Corpus, memory: str) -> None:
    send(corpus, memory, SILENT)
    listed = fsspec.filesystem("memory").ls("/corpora/mine", detail=True)
    last = max(listed, key=lambda file: file["created"])
    assert last["name"].endswith("manifest.json")


def test_one_file_at_a_time_where_each_is_a_commit(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, open_now = list[str](), threading.Semaphore(1)

    def put(_: Path, name: str) -> None:
        assert open_now.acquire(blocking=False), "another file is being written"
        time.sleep(0.01)
        written.append(name)
        open_now.release()

    there = Remote("hf://datasets/me/mine", None, "datasets/me/mine")
    monkeypatch.setattr(Remote, "file", lambda *_: None)
    monkeypatch.setattr(Remote, "put", lambda _, file, name: put(file, name))
    monkeypatch.setattr(Remote, "at", lambda _: there)
    send(corpus, there.address, SILENT)
    assert written == [*corpus.manifest["files"], "manifest.json"]


def test_what_is_there_is_neither_replaced_nor_believed(
    tmp_path: Path, corpus: Corpus, memory: str
) -> None:
    send(corpus, memory, SILENT)
    other = write_corpus(tmp_path / "other", numbered_files([2, 2]))
    with pytest.raises(InputError, match="holds another corpus: choose another address"):
        send(other, memory, SILENT)
    with pytest.raises(InputError, match="nothing can be written to addresses of the web"):
        send(corpus, "https://example.org/there", SILENT)
    with pytest.raises(InputError, match=r"other exists already: choose another folder"):
        receive(memory, other.path, SILENT)
    system = fsspec.filesystem("memory")
    file = next(name for name in system.find("/corpora/mine") if "rows" in name)
    system.pipe_file(file, b"\xff" * system.size(file))
    with pytest.raises(InputError, match=r"^the corpus at memory://corpora/mine is damaged: rows"):
        receive(memory, tmp_path / "new", SILENT)
    system.pipe_file(file, b"cut off")
    with pytest.raises(InputError, match=r"^the corpus at \S+ is damaged: copy it there again"):
        receive(memory, tmp_path / "new", SILENT)
    system.rm(file)
    with pytest.raises(InputError, match="is not a whole corpus: it has no rows"):
        receive(memory, tmp_path / "new", SILENT)
    assert not (tmp_path / "new").exists()
    system.pipe_file("/corpora/mine/manifest.json", b'{"files": {"../../escaped": {}}}')
    with pytest.raises(InputError, match="which leads out of its folder"):
        receive(memory, tmp_path / "new", SILENT)
    next(corpus.path.glob("rows-*")).write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        send(corpus, "memory://corpora/damaged", SILENT)
    assert not system.exists("/corpora/damaged")


def test_no_bucket_is_made(tmp_path: Path) -> None:
    copied: list[str] = []
    system = SimpleNamespace(put_file=lambda _, there: copied.append(there))  # without makedirs
    Remote("s3://bucket/mine", system, "bucket/mine").put(tmp_path / "x", "rows")
    assert copied == ["bucket/mine/rows"]


def test_the_command(tmp_path: Path, corpus: Corpus) -> None:
    there = f"file://{tmp_path}/there"
    assert "is whole" in crammed("data", "copy", corpus.path, there).stdout
    crammed("data", "copy", there, tmp_path / "back")
    assert content(Corpus(tmp_path / "back")) == content(corpus)
    refused = crammed("data", "show", "s3://bucket/corpus").stderr
    assert "with crammed data copy ADDRESS DIR" in refused
