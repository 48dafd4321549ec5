"""What a process did to its files, as one JSON line for each operation.

The process under test writes it (`inside`), one system call per line, so that no line is lost when
the process is killed. The campaign reads it to choose where a fault strikes, to see what was done
twice, and to undo what a power loss would have undone (`powerloss`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHANGES = ("create", "write", "sync", "rename", "mkdir", "remove", "rmdir", "native")
"""Operations that are counted, and before which a process can be stopped."""


@dataclass(frozen=True)
class Operation:
    """One line of a journal.

    Attributes:
        process: 0 for the command, from 1 for the processes that it starts.
        number: of the operation in its process, from 1; 0 for a remark.
        kind: one of `CHANGES`, or a remark: ``begin`` (of a process), ``read``, ``synced``,
            ``fault``.
        path: relative to the world.
        to: the new name, for ``rename``.
        about: a process id, an inode and time of change, whether a file is new.
        seconds: since the process began.
    """

    process: int
    number: int
    kind: str
    path: str = ""
    to: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def read_journal(file: Path) -> list[Operation]:
    if not file.exists():
        return []
    return [Operation(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]
