"""Optional libraries, which this package's extras install."""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata
from typing import Any

from crammed.errors import InputError, first_line


@cache
def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def import_extra(library: str, extra: str, user: str, otherwise: str = "") -> Any:
    """Import an optional library.

    Args:
        user: what needs it, such as ``data.clean.near``.
        otherwise: what to do instead of installing it; ends the message.

    Raises:
        InputError: the library is not installed, and the message names the extra that installs it;
            or it is, and cannot be imported.
    """
    try:
        return import_module(library)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{library}.".startswith(
            f"{error.name}."
        )
        if missing:
            why = f": pip install 'crammed[{extra}]'"
        else:
            why = f", which is installed but cannot be imported ({first_line(error)})"
        raise InputError(f"{user} needs {library}{why}{otherwise}") from error
