"""Optional libraries, which this package's extras install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from crammed.errors import InputError


def import_extra(library: str, extra: str, user: str, otherwise: str = "") -> Any:
    """Import an optional library.

    Args:
        user: what needs it, such as ``data.clean.near``.
        otherwise: what to do instead of installing it; ends the message.

    Raises:
        InputError: the library is not installed; the message names the extra that installs it.
    """
    try:
        return import_module(library)
    except ImportError as error:
        raise InputError(
            f"{user} needs {library}: pip install 'crammed[{extra}]'{otherwise}"
        ) from error
