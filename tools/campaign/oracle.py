"""Judges a try: the undisturbed result or one clear error line, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.journal import Operation
from campaign.stages import Stage
from crammed.data.shards import read_done, stage_result
from crammed.evaluation.finetuning.arrays import load_arrays

_VOLATILE = (
    *("seconds", "charged_seconds", "accounts", "tokens_per_second", "at", "memory_bytes"),
    *("environment", "peak_exaflop", "whole_seconds", "judging_seconds"),
    "identity",  # a run that prepares its own text remembers the whole path of it
)
"""Keys of JSON whose values depend on when, where and how fast something was done."""
_TIMES = re.compile(rb"[^,\n]* charged|[\d.]+ ?(s|min|h|d)\b|[\d.]+ [kM]?(tokens|characters)/s")
_DATES = re.compile(rb"\d{4}-\d{2}-\d{2}[T ]?[\d:.]*(\+00:00| UTC)?")
CODES = (0, 1, 2, 3, 4, 5, 75)
"""Exit codes that the documentation names."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended; its code is negative for a signal, and None if it hung."""

    code: int | None
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.error.splitlines() if line.startswith("error: ")]

    def complaint(self, may_be_killed: bool = False, may_be_mute: bool = False) -> str | None:
        """Why this is not a clean end; None if it is.

        `may_be_mute`: its last line may be lost, because nobody could read it.
        """
        if self.code is None:
            return "hangs"
        if "Traceback (" in self.error or "Exception ignored" in self.error:
            last = self.error.strip().splitlines()[-1]
            return f"traceback: {last[:160]}"
        if self.code < 0:
            return None if may_be_killed else f"killed by signal {-self.code}"
        if self.code not in CODES:
            return f"exit code {self.code}, which no page names"
        if self.code and len(self.lines) != 1 and not may_be_mute:
            return f"exit code {self.code} with {len(self.lines)} error lines"
        return None


def results(world: Path, stage: Stage) -> dict[str, str]:
    """The results of a stage: file -> hash of its content without times."""
    found = {}
    for made in stage.makes:
        place = world / made
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file() and not file.name.startswith("."):
                found[str(file.relative_to(world))] = _digest(file)
    return found


def _digest(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".json":
        with contextlib.suppress(ValueError):  # damaged, so different
            content = json.dumps(_lasting(json.loads(content)), sort_keys=True).encode()
    elif file.suffix == ".npz":
        content = _arrays(file)
    elif file.suffix in (".html", ".md"):
        content = _DATES.sub(b"", _TIMES.sub(b"", content))
    return hashlib.sha256(content).hexdigest()[:16]


def _arrays(file: Path) -> bytes:
    """The arrays in a file of `crammed.evaluation.finetuning.arrays`, with their description."""
    loaded = load_arrays(file)
    if loaded is None:
        return b"damaged"
    arrays, about = loaded
    listed = [(name, array.dtype.str, array.tobytes()) for name, array in sorted(arrays.items())]
    return repr((listed, _lasting(about))).encode()


def _lasting(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {k: _lasting(v) for k, v in values.items() if k not in _VOLATILE}
    return [_lasting(each) for each in values] if isinstance(values, list) else values


def difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first file that differs from the undisturbed result, and how; None if none does."""
    for name in sorted({*found, *wanted}):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is left behind"
        if found[name] != wanted[name]:
            return f"{name} differs"
    return None


def contents(world: Path) -> dict[str, bytes]:
    files = (file for file in sorted(world.rglob("*")) if file.is_file())
    return {str(file.relative_to(world)): file.read_bytes() for file in files}


def lost(before: Mapping[str, bytes], world: Path, damaged: str | None) -> str | None:
    """A file of an earlier stage that is gone or changed; logs may have grown."""
    for name, content in before.items():
        file = world / name
        if name == damaged or file.name.startswith("."):
            continue
        if not file.is_file():
            return f"{name}, of a finished stage, is gone"
        now = file.read_bytes()
        if not (now == content or (name.endswith(".jsonl") and now.startswith(content))):
            return f"{name}, of a finished stage, has changed"
    return None


def repeated(first: Sequence[str], journal: Sequence[Operation]) -> str | None:
    """A file of `first`, which marked finished work, that the second command made again."""
    again = {each.to for each in journal if each.kind == "rename"}
    found = (f"{name} was finished, and is made again" for name in first if name in again)
    return next(found, None)


def finished(stage: Stage, world: Path) -> list[str]:
    """The files that mark a finished piece of work."""
    return [
        str(file.relative_to(world))
        for pattern in stage.finished
        for file in sorted(world.glob(pattern))
        if file.stat().st_size and _is_whole(file)
    ]


def _is_whole(mark: Path) -> bool:
    """Whether what a mark of a preparation stands for is still there, as after a power loss.

    A preparation forces nothing onto the disk before it is done: it makes again what is damaged.
    """
    name, _, stage = mark.stem.rpartition(".")
    if stage in ("select", "pack"):
        return stage_result(mark.with_name(name), stage) is not None
    if stage != "read":
        return True
    read = read_done(mark)
    blocks = range(read["blocks"]) if read is not None else ()
    return read is not None and all(
        stage_result(mark.with_name(f"{number:05d}"), "clean") is not None for number in blocks
    )


def newest_checkpoint(world: Path, but: str = "") -> int:
    """The number of updates in the newest complete checkpoint; 0 if there is none.

    One with the file `but` does not count.
    """
    found = [
        int(path.name.split("-")[1])
        for path in world.glob("run/checkpoints/step-*")
        if not but.startswith(f"run/checkpoints/{path.name}/")
    ]
    return max(found, default=0)


def logged(world: Path) -> list[int]:
    """The updates of the run's log points, in the order in which they were written."""
    file = world / "run" / "metrics.jsonl"
    found = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            found.append(int(json.loads(line)["update"]))
        except (ValueError, KeyError, TypeError):
            continue  # cut short
    return found
