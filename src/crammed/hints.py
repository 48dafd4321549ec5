"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """``did you mean crammed-2022? `` if a known name is close, otherwise an empty string.

    Args:
        prefix: put before the suggestion, such as ``hub:``.
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {prefix}{near[0]}? " if near else ""
