"""Addresses of files that are not on this machine, such as s3://bucket/texts."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from crammed.errors import InputError

WEB = ("http", "https")
"""Elsewhere, ``?`` and ``#`` are part of a name or of a glob."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def is_address(name: str) -> bool:
    """Whether a name is an address, not a path on this machine."""
    return _ADDRESS.match(name) is not None


def began_as_address(path: Path) -> bool:
    """Whether a path was typed as an address, of whose slashes a path keeps one."""
    return _SCHEME.fullmatch(next(iter(path.parts), "")) is not None


def without_secrets(address: str) -> str:
    """An address without the password or the signature that it may hold.

    Raises:
        InputError: it is not an address.
    """
    scheme, host, path = _parts(address)
    return f"{scheme}://{host}{path}"


def last_part(address: str) -> str:
    """The name of the file or folder at an address.

    Raises:
        InputError: it is not an address.
    """
    _, host, path = _parts(address)
    return unquote(PurePosixPath(path).name) or host


def _parts(address: str) -> tuple[str, str, str]:
    """Scheme, host and path of an address, without a password or a query."""
    scheme, _, rest = address.partition("://")
    scheme = scheme.lower()
    if scheme in WEB:
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, below = rest.partition("/")
    host, path = host.rpartition("@")[2], f"{slash}{below}"
    try:
        urlsplit(f"{scheme}://{host}")
    except ValueError as error:
        raise InputError(
            f"{scheme}://{host}{path} is not an address: {host} is no name of a host or a bucket; "
            f"write {scheme}://NAME{path}"
        ) from error
    return scheme, host, path
