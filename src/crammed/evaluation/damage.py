"""Says in one line that files of an evaluation folder are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crammed.errors import InputError

DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What values that are missing, or of another type, raise."""


@contextmanager
def whole(*folders: Path) -> Iterator[None]:
    """Turn what damaged files of evaluation folders raise into an `InputError`."""
    try:
        yield
    except DAMAGE as error:
        named = " or ".join(map(str, folders))
        raise InputError(
            f"{named} is damaged: restore it from a copy, or evaluate again into another folder "
            "(--into)"
        ) from error
