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
    """The removal of a safeguard: in each module, the function `name` is replaced.

    Attributes:
        stage: name of a stage that relies on it.
        fault: name of a fault that it protects from.
    """

    what: str
    modules: tuple[str, ...]
    name: str
    function: Callable[..., object]
    stage: str
    fault: str

    def put(self) -> None:
        """Remove the safeguard, which must exist."""
        for module in map(importlib.import_module, self.modules):
            assert callable(getattr(module, self.name)), f"{module} has no {self.name} any more"
            setattr(module, self.name, self.function)


def _in_place(path: Path, text: str, **_: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@contextlib.contextmanager
def _deaf_to_terminate() -> Iterator[list[str]]:
    from crammed.training.signals import noted_signals

    with noted_signals() as received:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        yield received


_UPDATES, _LINK = "pretrain, updates", "planted link"
PLANTS = {
    "sync": Plant(
        "files reach the disk before a rename",
        *(("crammed.files.folders", "crammed.files.writing"), "sync", lambda path: None),
        *("export", "power loss"),
    ),
    "hash": Plant(
        "checkpoints are compared with their hashes",
        *(("crammed.training.checkpoint", "crammed.model.trained"), "damage", lambda folder: None),
        *(_UPDATES, "damaged file"),
    ),
    "finite": Plant(
        "checkpoints hold finite numbers",
        *(("crammed.training.checkpoint",), "all_finite", lambda tensors: True),
        *(_UPDATES, "not a number"),
    ),
    "rename": Plant(
        "files are written aside",
        *(("crammed.files.writing",), "write_text", _in_place),
        *("study", "kill"),
    ),
    "signal": Plant(
        "SIGTERM ends training between updates",
        *(("crammed.training.loop",), "noted_signals", _deaf_to_terminate),
        *(_UPDATES, "signal"),
    ),
    "folder links": Plant(
        "a folder with links in it is refused",
        *(("crammed.files.locks",), "refuse_links", lambda folder: None),
        *(_UPDATES, _LINK),
    ),
    "file links": Plant(
        "a link in place of a new file is replaced",
        *(("crammed.files.writing",), "open_new", lambda path: path.open("wb")),
        *("report", _LINK),
    ),
    "work folder": Plant(
        "intermediate results are not kept behind a link",
        *(("crammed.data.preparing.workfolder",), "refuse_link", lambda path: path),
        *("prepare", _LINK),
    ),
}
