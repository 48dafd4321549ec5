"""What docs/security.md says the package never does."""

from __future__ import annotations

import ast
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import crammed
from crammed.pipeline import run_everything
from crammed.rules.choosing import Asked
from crammed.terminal.progress import SILENT
from support.text import documents, tiny, write_jsonl

PACKAGE = Path(crammed.__file__).parent
UNSAFE_IMPORTS = {
    *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
    *("requests", "httpx", "aiohttp", "urllib", "http", "ftplib", "smtplib", "socket"),
}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "torch.save"}
RUNNING_CODE = ("data/preparing/cleaning/own.py", "exec")
"""What runs the code that `data.clean.function` names."""
STARTING_PROGRAMS = {"runs/environment.py", "study/running/places.py", "study/running/timing.py"}
STARTING_PROGRAMS |= {"tracking/following.py"}
SERVING = ("report/watching.py", "http.server")
"""What answers a browser on this machine."""


def trees() -> Iterator[tuple[str, ast.AST]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield str(file.relative_to(PACKAGE)), ast.parse(file.read_text("utf-8"))


def test_nothing_is_unpickled_evaluated_or_sent() -> None:
    wrong, starting = [], set()
    for name, tree in trees():
        for node in ast.walk(tree):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = [node.module or ""]
            imported = [e for e in imported if e != "urllib.parse" and (name, e) != SERVING]
            tops = {each.partition(".")[0] for each in imported}
            wrong += [f"{name}: import {each}" for each in tops & UNSAFE_IMPORTS]
            if "subprocess" in tops:
                starting.add(name)
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in UNSAFE_CALLS and (name, called) != RUNNING_CODE:
                    wrong.append(f"{name}: {called}")
                for word in node.keywords:
                    given = f"{word.arg}={ast.unparse(word.value)}"
                    if given in ("allow_pickle=True", "weights_only=False", "shell=True"):
                        wrong.append(f"{name}: {given}")
                if called == "yaml.load" and name != "config/yamlfile.py":
                    wrong.append(f"{name}: {called}")
    assert not wrong
    assert starting == STARTING_PROGRAMS


def test_a_run_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            pytest.fail(f"connected to {address}")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    with suppress(ImportError):  # which has read that variable for every later test
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    config = tiny(budget={"limit": "2updates"}, data={"sources": [str(text)]})
    run_everything(Asked(config), tmp_path / "run", None, None, SILENT)
    assert (tmp_path / "run" / "report.html").exists()
