"""Where this user keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where this user keeps what can be made again.

    The variable CRAMMED_CACHE names it; without it, it is ``~/.cache/crammed``.
    """
    if named := os.environ.get("CRAMMED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "crammed"
