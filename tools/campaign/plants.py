"""Faults planted in the code, to prove that the campaign finds them.

Each takes one safeguard away, in the process under test alone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plant:
    """A safeguard to take away.

    Attributes:
        what: the safeguard.
        put: takes it away.
        stage: name of a stage that relies on it.
        fault: name of a fault that it is there for.
    """

    what: str
    put: Callable[[], None]
    stage: str
    fault: str


def _without_sync() -> None:
    from crammed import files

    assert callable(files._sync)
    files._sync = lambda path: None


def _writing_in_place() -> None:
    from crammed import files

    def write_text(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    for module in _importers("crammed", "write_text"):
        module.write_text = write_text  # type: ignore[attr-defined]
    assert files.write_text is write_text


def _deaf_to_terminate() -> None:
    from crammed.training import distributed, loop

    noted = loop.noted_signals

    @contextlib.contextmanager
    def noted_signals():  # type: ignore[no-untyped-def]
        with noted() as received:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            yield received

    loop.noted_signals = distributed.noted_signals = noted_signals


def _without_hashes() -> None:
    from crammed.model import trained
    from crammed.training import checkpoint

    assert callable(checkpoint.damage)
    assert callable(trained.damage)
    checkpoint.damage = trained.damage = lambda folder: None


def _without_finite_check() -> None:
    from crammed.training import checkpoint

    assert callable(checkpoint.all_finite)
    checkpoint.all_finite = lambda tensors: True


def _importers(package: str, name: str) -> list[object]:
    """The modules of a package that have a function of this name."""
    import sys

    found = [m for key, m in sys.modules.items() if key.partition(".")[0] == package]
    return [module for module in found if hasattr(module, name)]


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
}
