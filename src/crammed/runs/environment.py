"""The versions and the machine that a result came from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import crammed


def environment() -> dict[str, Any]:
    """The versions and the machine, for the record of a run."""
    packages = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "transformers")
    return {
        "crammed": crammed.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: v for name in packages if (v := _version(name)) is not None},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "time_zone": time.tzname[0],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree that this package runs from; None if it is not in one.

    CRAMMED_COMMIT names the commit of a copy that has no history.
    """
    if named := os.environ.get("CRAMMED_COMMIT"):
        return named
    root = Path(crammed.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
