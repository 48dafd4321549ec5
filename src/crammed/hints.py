"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MEANT = {"gpu": "cuda"}
"""Words for which the closest name would be a wrong one."""


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``did you mean crammed-2022? `` if a known name is close, otherwise an empty string.

    Args:
        prefix: put before the suggestion, such as ``hub:``.
    """
    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(_MEANT.get(name.lower(), name.lower()), names, 1)
    return f"did you mean {prefix}{names[near[0]]}? " if near else ""
