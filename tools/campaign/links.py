"""Links that somebody planted where a command is about to write."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign.journal import CHANGES, Operation

_OF_PROCESS = re.compile(r"(.*/)?(\.[^/]*\.)([0-9]+)(\.tmp)")
"""A file that a process writes aside, which has its number in its name."""
_NUMBERS = 500
"""How many numbers of processes after the last one somebody could guess."""
_TARGETS = ("file", "folder", "missing", "copy")
"""What a link names: a file or a folder of somebody, nothing yet, or a copy of what was there."""


class PlantedLink:
    """A link in a world to something outside of it.

    Args:
        outside: new folder for what nobody may write to.
        journal: of an undisturbed command, which tells where it writes.
        typed: words of the command; a folder that it names may be a link.
    """

    def __init__(
        self,
        world: Path,
        outside: Path,
        journal: Sequence[Operation],
        typed: Sequence[str],
        draw: random.Random,
    ) -> None:
        self.name, self.how = _place(journal, typed, draw), draw.choice(_TARGETS)
        self._link, self._outside = world / self.name, outside
        self._replaced = outside.with_name("replaced")
        self._there = self._link.exists()
        (outside / "folder").mkdir(parents=True)
        (outside / "folder" / "kept").write_text("not yours")
        (outside / "file").write_text("not yours")
        if self.how == "copy" and self._there:
            copy: Any = shutil.copytree if self._link.is_dir() else shutil.copyfile
            copy(self._link, outside / "copy")
        if self._there:
            shutil.move(self._link, self._replaced)  # which may be on another device
        self._link.parent.mkdir(parents=True, exist_ok=True)
        self._links = {self._link, *_of_later_processes(self._link)}
        for link in self._links:
            link.symlink_to(outside / self.how)
        self._before = _state(outside)

    def touched(self) -> str | None:
        """What has changed outside; None if nothing has."""
        before, now = self._before, _state(self._outside)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return f"{min(changed)} was written through {self.name}" if changed else None

    def take_back(self) -> None:
        """Put what was there in place of the link."""
        for link in self._links:
            link.unlink(missing_ok=True)
        if self._there:
            shutil.move(self._replaced, self._link)


def _of_later_processes(path: Path) -> list[Path]:
    """What processes that begin from now on would call the file; empty if it has no number."""
    if (found := _OF_PROCESS.fullmatch(str(path))) is None:
        return []
    last = int(Path("/proc/sys/kernel/ns_last_pid").read_text())
    folder, before, _, after = found.groups("")
    return [Path(f"{folder}{before}{last + n}{after}") for n in range(1, _NUMBERS + 1)]


def _place(journal: Sequence[Operation], typed: Sequence[str], draw: random.Random) -> str:
    """A path that the command writes to, or a folder above one."""
    written = {each.to or each.path for each in journal if each.kind in CHANGES}
    made = {each.path for each in journal if each.kind in ("create", "mkdir")}
    path = Path(draw.choice(sorted((written | made) - {"", *typed})))
    above = [str(each) for each in path.parents[:-1]]
    return draw.choice([str(path), *(each for each in above if each not in typed)])


def _state(folder: Path) -> dict[str, bytes | None]:
    """Every file with its content, and every folder."""
    return {
        str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None
        for each in sorted(folder.rglob("*"))
    }
