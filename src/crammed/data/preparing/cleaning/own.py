"""A filter of the user's own: the Python function that `data.clean.function` names.

It is named as ``FILE.py:FUNCTION``. Once it has been found, ``@`` and the SHA-256 of the file
follow, so that all workers run the same code. Nothing but the file is hashed: what it imports is
taken as it is, from the packages that are installed.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from crammed.errors import InputError
from crammed.files.folders import expanded

KEY = "data.clean.function"


def located(named: str) -> str:
    """The function with the absolute path of its file, and the file's hash.

    Raises:
        InputError: the file cannot be read.
    """
    path, name, expected = _parts(named)
    expected = expected or hashlib.sha256(_source(path)).hexdigest()
    return f"{expanded(path).absolute()}:{name}@{expected}"


def without_folder(named: str) -> str:
    """The function as a manifest names it: with the name of its file and the hash alone."""
    path, name, expected = _parts(located(named))
    return f"{path.name}:{name}@{expected}"


def of_function(named: str) -> str:
    """What is the same wherever the file is, and whatever its name is."""
    return without_folder(named).rpartition(":")[2]


def own_filter(named: str) -> Callable[[str], str | None]:
    """The function as a step: returns the text to keep, or None to drop the document.

    It is called with the text of a document, and returns what is to be kept of it (str), True to
    keep all of it, or False, None or an empty text to drop it.

    Raises:
        InputError: the file cannot be read, is not the one that was found, or has no such function;
            or its code is wrong. The step raises it as well, when the function fails.
    """
    path, name, expected = _parts(named)
    source = _source(path)
    digest = hashlib.sha256(source).hexdigest()
    if expected and digest != expected:
        raise InputError(f"{KEY}: {path} changed while text was cleaned: repeat the command")
    module = ModuleType(f"crammed_filter_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # as dataclasses and the like need it
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{KEY}: {path} has no function {name}")

    def step(text: str) -> str | None:
        try:
            kept: Any = function(text)
        except (Exception, SystemExit) as error:
            raise _failed(path, error) from error
        if kept is True:
            kept = text
        if kept is None or kept is False:
            return None
        if not isinstance(kept, str):
            raise InputError(
                f"{KEY}: {name} in {path} returned {type(kept).__name__}: return the text to keep "
                "(str) or True, and None or False to drop the document"
            )
        return str(kept) if kept.strip() else None

    return step


def _parts(named: str) -> tuple[Path, str, str]:
    """The file, the name of the function, and the hash of the file, empty if it is not known."""
    path, _, rest = named.rpartition(":")
    name, _, expected = rest.partition("@")
    return Path(path), name, expected


def _source(path: Path) -> bytes:
    try:
        return expanded(path).read_bytes()
    except OSError as error:
        raise InputError(f"{KEY}: cannot read {path} ({error.strerror})") from error


def _failed(path: Path, error: BaseException) -> InputError:
    """What went wrong in the file, in one line that says where."""
    lines = [
        at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    what = next(iter(str(error).splitlines()), "")
    where = f"{path}, line {line}" if line else str(path)
    return InputError(f"{KEY}: {where}: {type(error).__name__}: {what}".removesuffix(": "))
