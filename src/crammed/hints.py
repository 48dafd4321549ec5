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


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """A message that a name does not exist, suggesting one that does."""
    names = list(known)
    return f"no {kind} {name!r}: {did_you_mean(name, names)}choose one of {', '.join(names)}"
