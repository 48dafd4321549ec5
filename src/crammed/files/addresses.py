"""Addresses of files that are not on this machine, such as s3://bucket/texts."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def is_address(name: str) -> bool:
    """Whether a name is an address, not a path on this machine."""
    return _ADDRESS.match(name) is not None


def began_as_address(path: Path) -> bool:
    """Whether a path was typed as an address, of whose slashes a path keeps one."""
    return _SCHEME.fullmatch(next(iter(path.parts), "")) is not None


def without_secrets(address: str) -> str:
    """An address without the password or the signature that it may hold."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def last_part(address: str) -> str:
    """The name of the file or folder at an address."""
    parts = urlsplit(address)
    return unquote(PurePosixPath(parts.path).name) or parts.netloc.rpartition("@")[2]
