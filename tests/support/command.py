"""The command line as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def crammed(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "crammed", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=250,
    )
