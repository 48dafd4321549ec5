"""Text at hf:// addresses, for which `huggingface_hub` asks a hub on this machine."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

from crammed.errors import InputError
from crammed.formats.remote import Remote

pytest.importorskip("huggingface_hub")
API, RESOLVE = "/api/datasets/me/mine", "/datasets/me/mine/resolve/main/"
FILES = {"texts/a b.txt": b"first", "texts/c.txt": b"second"}
CUT = "texts/cut.txt"


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does about one data set: its `FILES`, and one that is always cut off."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).rstrip("/")
        if path in (API, f"{API}/revision/main"):
            self.answer({"id": "me/mine", "sha": "0" * 40})
        elif path == f"{API}/tree/main":
            self.answer([{"type": "directory", "path": "texts", "size": 0, "oid": "1" * 40}])
        elif path == f"{API}/tree/main/texts":
            self.answer([_listed(name, text) for name, text in {**FILES, CUT: b"cut"}.items()])
        elif path == RESOLVE + CUT:
            self.send(200, b"", length=3)
        elif path.startswith(RESOLVE):
            self.send(200, FILES[path.removeprefix(RESOLVE)])
        elif path.startswith(f"{API}/revision"):
            self.send(404, b"{}", error="RevisionNotFound")
        elif path.startswith(API):
            self.send(404, b"{}", error="EntryNotFound")
        else:
            self.send(401, b"{}", error="RepoNotFound")

    def answer(self, found: object) -> None:
        self.send(200, json.dumps(found).encode())

    def send(self, code: int, body: bytes, length: int | None = None, error: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _listed(name: str, text: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(text), "oid": sha1(text).hexdigest()}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        threading.Thread(target=server.serve_forever).start()
        try:
            yield
        finally:
            server.shutdown()


def fetch(address: str, folder: Path) -> dict[str, bytes]:
    """What lies at an address, by its path below."""
    remote = Remote.at(address)
    files = [remote.look_up(file) for file in remote.files() if "cut" not in file.below]
    return {
        file.below: remote.fetch(file, folder / "copies", folder / "notes").read_bytes()
        for file in files
    }


def test_files_folders_and_globs(tmp_path: Path) -> None:
    both = {"a b.txt": b"first", "c.txt": b"second"}
    assert fetch("hf://datasets/me/mine/texts/", tmp_path) == both
    assert fetch("hf://datasets/me/mine@main/texts/*.txt", tmp_path) == both
    assert fetch("hf://datasets/me/mine/texts/c.txt", tmp_path) == {"c.txt": b"second"}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("hf://datasets/me/none/texts/", ": there is no such repository, or it is private"),
        ("hf://datasets/me/none/*.txt", ": there is no such repository, or it is private"),
        ("hf://me/mine/c.txt", "a data set's address begins with hf://datasets/OWNER/NAME"),
        ("hf://datasets/me/mine@v9/texts/", ": the repository has no such revision"),
        ("hf://datasets/me/mine/texts/none.txt", ""),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, address: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        fetch(address, tmp_path)
    said = str(caught.value).removeprefix(f"no such data: {address}")
    assert why in said if why else not said
    assert "\n" not in said


def test_a_file_that_is_cut_off_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote.at(f"hf://datasets/me/mine/{CUT}")
    monkeypatch.setattr(
        "huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda seconds: None)
    )
    printed = BufferingHandler(100)
    logging.getLogger("huggingface_hub").addHandler(printed)
    try:
        with pytest.raises(InputError, match=r"cut\.txt cannot be reached: "):
            remote.fetch(remote.look_up(*remote.files()), tmp_path / "copies", tmp_path / "notes")
    finally:
        logging.getLogger("huggingface_hub").removeHandler(printed)
    assert not printed.buffer
    assert not list(tmp_path.glob("copies/*"))
