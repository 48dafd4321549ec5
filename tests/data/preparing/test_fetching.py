"""Text at an address: in memory, in a local file system and on a web server of this machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest

from crammed.config import DataConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing import driver
from crammed.data.preparing.read.fetching import fetched
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.formats.remote import Remote
from crammed.pipeline import run_everything
from crammed.rules.choosing import Asked
from crammed.terminal.progress import SILENT
from support.corpora import prepared
from support.text import documents, tiny, write_jsonl
from support.web import serving


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with text, hidden text, a file of another format, and an empty folder."""
    folder = tmp_path / "texts"
    for name in ("more", ".hidden", "empty"):
        (folder / name).mkdir(parents=True)
    write_jsonl(folder / "b.jsonl", documents(200, seed=1))
    write_jsonl(folder / "more" / "a b.jsonl", documents(200, seed=2))
    (folder / ".hidden" / "c.txt").write_text("hidden")
    (folder / "notes.bin").write_bytes(b"\0")
    return folder


@pytest.fixture
def memory(texts: Path) -> Iterator[str]:
    """The folder in fsspec's memory."""
    system = fsspec.filesystem("memory")
    for file in texts.rglob("*"):
        if file.is_file():
            system.pipe_file(f"/texts/{file.relative_to(texts)}", file.read_bytes())
    system.mkdir("/texts/empty")
    yield "memory://texts"
    system.rm("/texts", recursive=True)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    with serving(tmp_path) as served:
        yield served


def read(address: str, folder: Path, **source: Any) -> dict[str, list[str]]:
    """The documents of every file at an address, by the file's name."""
    data = DataConfig.model_validate({"sources": [{"path": address, **source}]})
    (opened,) = open_sources(fetched(data, folder, SILENT))
    return {part.name: list(part.documents()) for part in opened.parts}


def test_a_run_copies_its_text(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "crammed.pipeline.train_and_export", Mock(side_effect=RuntimeError("enough"))
    )
    config = tiny(data={"sources": [f"{memory}/b.jsonl"]})
    with pytest.raises(RuntimeError, match="enough"):
        run_everything(Asked(config), tmp_path / "run", None, None, SILENT)
    (source,) = Corpus(tmp_path / "run" / "corpus").manifest["sources"]
    assert source["name"] == "b.jsonl"


def test_a_command_that_copies_nothing_says_so_of_an_address() -> None:
    data = DataConfig.model_validate({"sources": ["https://me:secret@host/a.txt?signature=x"]})
    said = r"^https://host/a\.txt: this command reads files on this machine: download it, and name"
    with pytest.raises(InputError, match=said):
        open_sources(data)


BOTH = {"b.jsonl": documents(200, seed=1), "a b.jsonl": documents(200, seed=2)}
FIRST = {"b.jsonl": documents(200, seed=1)}


@pytest.mark.parametrize(
    ("below", "found"),
    [
        *(("/", BOTH), ("/b.jsonl", FIRST), ("/*.jsonl", FIRST), ("/**/*.jsonl", BOTH)),
        *(("/*", BOTH), ("/**", BOTH), ("/more", 1), ("/m*", 1)),
    ],
)
def test_files_folders_and_globs(
    tmp_path: Path, texts: Path, memory: str, below: str, found: Any
) -> None:
    wanted = {"a b.jsonl": BOTH["a b.jsonl"]} if found == 1 else found
    for number, address in enumerate((memory, f"file://{texts}")):
        assert read(address + below, tmp_path / f"work-{number}") == wanted


@pytest.mark.parametrize("below", ["/", "/*.jsonl", "/m*", "/b.jsonl"])
def test_copies_that_do_not_fit_on_the_disk_are_refused(
    tmp_path: Path, memory: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=10**12, free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    words = r"^copying takes [\d.]+ kB of disk at .* 1 kB are free: .* for crammed prepare\)$"
    with pytest.raises(InputError, match=words):
        read(memory + below, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_files_whose_names_do_not_say_what_they_are(tmp_path: Path) -> None:
    """As in a folder of this machine."""
    letters = tmp_path / "letters"
    letters.mkdir()
    for number, text in enumerate(documents(5, seed=4)):
        (letters / f"LETTER-{number}").write_text(text)
    (letters / "stamp.png").write_bytes(b"\0")
    found = read(f"file://{letters}", tmp_path / "work")
    assert found == read(str(letters), tmp_path)
    assert len(found) == 5


def test_a_percent_sign_in_a_name_is_one(tmp_path: Path) -> None:
    """Unlike in addresses of the web."""
    texts = {"a b.txt": ["One."], "a%20b.txt": ["Two."]}
    (tmp_path / "odd").mkdir()
    for name, (text,) in texts.items():
        (tmp_path / "odd" / name).write_text(text)
    assert read(f"file://{tmp_path}/odd", tmp_path / "work") == texts


def test_a_number_sign_and_a_question_mark_in_names(tmp_path: Path) -> None:
    """Unlike in addresses of the web; the question mark is that of a glob."""
    (tmp_path / "C#.txt").write_text("One.")
    for number, name in enumerate(("C#.txt", "C?.txt")):
        assert read(f"file://{tmp_path}/{name}", tmp_path / f"work-{number}") == {
            "C#.txt": ["One."]
        }


def test_a_web_server(tmp_path: Path, texts: Path, web: tuple[str, list[str]]) -> None:
    address, requests = web
    work = tmp_path / "work"
    assert read(f"{address}/texts/", work) == BOTH
    for glob in ("*", "**", "**/*.jsonl"):
        assert read(f"{address}/texts/{glob}", work) == BOTH
    assert read(f"{address}/texts/b.jsonl?signature=x", work) == FIRST
    requests.clear()
    assert read(f"{address}/texts/b.jsonl?signature=x", work) == FIRST
    assert not [each for each in requests if each.startswith("GET")]  # unchanged
    write_jsonl(texts / "b.jsonl", ["something new"])
    assert read(f"{address}/texts/b.jsonl?signature=x", work) == {"b.jsonl": ["something new"]}
    with pytest.raises(
        InputError, match=r"^no such data: http://127\.0\.0\.1:\d+/texts/none\.txt$"
    ):
        read(f"{address}/texts/none.txt", work)


def test_links_of_a_page_are_not_followed(texts: Path, web: tuple[str, list[str]]) -> None:
    (texts / "page.html").write_text('See <a href="b.jsonl">more</a>.')
    files = Remote.at(f"{web[0]}/texts/*.html").files()
    assert [file.below for file in files] == ["page.html"]


def test_a_file_that_is_gone_is_not_read_again(tmp_path: Path, memory: str) -> None:
    assert read(memory, tmp_path / "work") == BOTH
    fsspec.filesystem("memory").rm("/texts/more/a b.jsonl")
    assert read(memory, tmp_path / "work") == FIRST


def test_a_file_that_changes_while_it_is_copied_is_refused(tmp_path: Path, memory: str) -> None:
    remote = Remote.at(f"{memory}/b.jsonl")
    (file,) = remote.files()
    file = remote.look_up(file)
    remote.system.pipe_file("/texts/b.jsonl", b"another size")
    with pytest.raises(InputError, match=r"b\.jsonl was cut off, or changed while it was copied"):
        remote.fetch(file, tmp_path / "copies", tmp_path / "notes")
    assert not list(tmp_path.glob("copies/*.jsonl"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("memory://nothing/here.txt", "no such data: memory://nothing/here.txt"),
        ("memory://texts/*.csv", "no such data: memory://texts/*.csv"),
        ("memory://texts/*.bin", "memory://texts/*.bin holds no file of a known format"),
        ("s3://bucket/x.txt", "s3:// needs another package: pip install s3fs"),
        ("gs://bucket/x.txt", "gs:// needs another package: pip install gcsfs"),
        ("ftp:///x.txt", "ftp:///x.txt names no server: write ftp://SERVER/x.txt"),
        ("ftp://", "ftp:// names no server: write ftp://SERVER/"),
        ("github://me/x.txt", "github://me/x.txt cannot be reached: missing a required argument"),
        ("ftp://me:[secret@host/x.txt", "ftp://host/x.txt cannot be reached"),
        ("http://[host/x.txt", "http://[host/x.txt is not an address"),
        ("gopher://host/x.txt", "gopher://host/x.txt: unknown kind of address, gopher://"),
        ("http://me:secret@127.0.0.1:1/x.txt", "http://127.0.0.1:1/x.txt"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, memory: str, address: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(address, tmp_path / "work")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote.at(memory)
    monkeypatch.setattr(remote.system, "find", Mock(side_effect=TimeoutError))
    with pytest.raises(InputError, match=r"^memory://texts cannot be reached: no answer in time$"):
        remote.files()


@pytest.mark.parametrize(
    ("address", "said", "words"),
    [
        ("s3://b/x", Exception("Unable to locate credentials"), "credentials; set AWS_PROFILE, or"),
        ("s3://b/x", PermissionError("Access Denied"), "Access Denied; set AWS_PROFILE, or"),
        ("gs://b/x", OSError("Anonymous caller."), "caller; set GOOGLE_APPLICATION_CREDENTIALS to"),
        ("az://b/x", ValueError("name with credentials!!"), "set AZURE_STORAGE_CONNECTION_STRING"),
        ("memory://x", PermissionError("Not yours."), "memory://x cannot be reached: Not yours."),
    ],
)
def test_missing_keys_are_said_to_be_set(
    address: str, said: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def system(**_: Any) -> None:
        raise said

    monkeypatch.setattr(system, "_get_kwargs_from_urls", lambda _: {}, raising=False)
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: system)
    with pytest.raises(InputError) as caught:
        Remote.at(address)
    assert words in str(caught.value)


def test_a_server_is_the_one_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = Mock()
    monkeypatch.setattr("fsspec.implementations.ftp.FTP", connected)
    remote = Remote.at("ftp://me:secret@host:2121/texts/a.txt")
    connected().connect.assert_called_once_with("host", 2121)
    assert connected().login.call_args.args[:2] == ("me", "secret")
    assert remote.root == "/texts/a.txt"


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        InputError, match=r"memory://x needs fsspec: pip install 'crammed\[remote\]'"
    ):
        read("memory://x", tmp_path / "work")


def test_a_corpus_of_remote_text_is_that_of_the_same_text_here(
    tmp_path: Path, texts: Path, memory: str
) -> None:
    def make(out: str, path: str, *heldout: str) -> Corpus:
        return prepared(tmp_path / out, path, heldout=heldout)

    held = write_jsonl(tmp_path / "held.jsonl", documents(60, seed=3))
    fsspec.filesystem("memory").pipe_file("/texts/notes/held.jsonl", held.read_bytes())
    fsspec.filesystem("memory").mv("/texts/notes/held.jsonl", "/held.jsonl")
    here = make("here", str(texts), str(held))
    there = make("there", memory, "memory://held.jsonl")
    assert there.manifest == here.manifest
    assert not list(tmp_path.glob(".*"))  # neither copies nor notes are left


@pytest.mark.parametrize("wrong", ["data", "heldout"])
def test_wrong_names_of_files_here_are_told_before_anything_is_copied(
    tmp_path: Path, texts: Path, memory: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(driver, "fetched", lambda *_: pytest.fail("copied"))
    named = {"data": texts / "b.jsonl", "heldout": texts / "more", wrong: texts / "txt.json"}
    with pytest.raises(InputError, match=r"no such data: .*txt\.json"):
        prepared(tmp_path / "out", [memory, named["data"]], heldout=[str(named["heldout"])])


def test_shared_configurations_hold_no_secrets() -> None:
    config = tiny(data={"sources": ["https://me:secret@host/a/x.txt?signature=secret"]})
    assert config.without_folders()["data"]["sources"][0]["path"] == "https://host/a/x.txt"
