"""Mutations of the code that prove that the campaign finds faults.

Each removes one safeguard, only in the process under test.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plant:
    """The removal of a safeguard.

    Attributes:
        what: the safeguard.
        put: removes it.
        stage: name of a stage that relies on it.
        fault: name of a fault that it protects from.
    """

    what: str
    put: Callable[[], None]
    stage: str
    fault: str


def _replace(modules: tuple[str, ...], name: str, function: Callable[..., object]) -> None:
    """Replace a function, which must exist, in some modules."""
    for module in map(importlib.import_module, modules):
        assert callable(getattr(module, name)), f"{module} has no {name} any more"
        setattr(module, name, function)


def _without_sync() -> None:
    _replace(("crammed.files.folders", "crammed.files.writing"), "sync", lambda path: None)


def _without_hashes() -> None:
    modules = ("crammed.training.checkpoint", "crammed.model.trained")
    _replace(modules, "damage", lambda folder: None)


def _without_finite_check() -> None:
    _replace(("crammed.training.checkpoint",), "all_finite", lambda tensors: True)


def _writing_in_place() -> None:
    def write_text(path: Path, text: str, **_: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    _replace(("crammed.files.writing",), "write_text", write_text)


def _deaf_to_terminate() -> None:
    from crammed.training.signals import noted_signals as noted

    @contextlib.contextmanager
    def noted_signals() -> Iterator[list[str]]:
        with noted() as received:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            yield received

    _replace(("crammed.training.loop",), "noted_signals", noted_signals)


def _following_links_in_folders() -> None:
    _replace(("crammed.files.locks",), "refuse_links", lambda folder: None)


def _following_links_to_write() -> None:
    _replace(("crammed.files.writing",), "open_new", lambda path: path.open("wb"))


def _working_behind_links() -> None:
    _replace(("crammed.data.preparing.workfolder",), "refuse_link", lambda path: path)


PLANTS = {
    "sync": Plant("files reach the disk before a rename", _without_sync, "export", "power loss"),
    "hash": Plant(
        "checkpoints are compared with their hashes",
        _without_hashes,
        "pretrain, updates",
        "damaged file",
    ),
    "finite": Plant(
        "checkpoints hold finite numbers",
        _without_finite_check,
        "pretrain, updates",
        "not a number",
    ),
    "rename": Plant("files are written aside", _writing_in_place, "study", "kill"),
    "signal": Plant(
        "SIGTERM ends training between updates", _deaf_to_terminate, "pretrain, updates", "signal"
    ),
    "folder links": Plant(
        "a folder with links in it is refused",
        _following_links_in_folders,
        "pretrain, updates",
        "planted link",
    ),
    "file links": Plant(
        "a link in place of a new file is replaced",
        _following_links_to_write,
        "report",
        "planted link",
    ),
    "work folder": Plant(
        "intermediate results are not kept behind a link",
        _working_behind_links,
        "prepare",
        "planted link",
    ),
}
