"""A folder for compiled code that nobody else can write to."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

from crammed.errors import InputError
from crammed.files.folders import cache_folder

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def own_compiled_code() -> None:
    """Make PyTorch keep what it compiles where only this user can write; call it before it does.

    PyTorch's own choice is a folder with a predictable name in the shared temporary directory, from
    which it loads libraries and pickles, whoever made that folder. A folder that the user has named
    in TORCHINDUCTOR_CACHE_DIR is kept, but not PyTorch's own choice, which it writes there as soon
    as its compiler is imported. Other processes inherit the folder.

    Raises:
        InputError: the folder belongs to somebody else.
    """
    named = os.environ.get(COMPILED)
    if named and not named.startswith(os.path.join(tempfile.gettempdir(), "torchinductor_")):
        return
    folder = cache_folder() / "compiled"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # a home folder that cannot be written to
        folder = Path(tempfile.mkdtemp(prefix="crammed-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _check(folder)
    os.environ[COMPILED] = str(folder.absolute())


def _check(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InputError(
            f"{folder} is not a folder of yours, and code is loaded from it: remove it, or name "
            f"another folder in {COMPILED}"
        )
    if found.st_mode & 0o022:
        raise InputError(
            f"others can write to {folder}, and code is loaded from it: remove it, or name another "
            f"folder in {COMPILED}"
        )
