"""The versions and the machine that a result came from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import crammed
from crammed.extras import version_of


def environment() -> dict[str, Any]:
    """The versions and the machine, for the record of a run."""
    packages = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "transformers")
    return {
        "crammed": crammed.__version__,
        "commit": _commit(),
        "source": tree_hash("src"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: v for name in packages if (v := version_of(name)) is not None},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "time_zone": time.tzname[0],
    }


def _commit() -> str | None:
    named = os.environ.get("CRAMMED_COMMIT")  # for a copy that has no history
    return named or _git("describe", "--always", "--dirty", "--abbrev=12")


def tree_hash(folder: str) -> str | None:
    """The hash that git has for a folder of the source tree, which outlives a rebase.

    None if it has changes that are in no commit, or is not in a source tree.
    """
    changes = _git("status", "--porcelain", "--", folder)
    return _git("rev-parse", f"HEAD:{folder}") if changes == "" else None


def _git(*words: str) -> str | None:
    """What git says about the source tree; None if this is none."""
    root = Path(crammed.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
