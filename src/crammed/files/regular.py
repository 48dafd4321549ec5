"""Opens files in folders that others may have made.

What is written never goes through a link, and only ordinary files are read: opening a pipe would
wait for ever, and reading a device might never end. A folder that a user names may itself be a
link; what lies below a folder that is written to may not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from crammed.errors import InputError

_NEW_MODE = 0o666  # the umask takes away from it
_TO_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TO_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def ordinary(path: Path) -> Path:
    """The path itself, for libraries that open files by name.

    Raises:
        InputError: there is something else than an ordinary file, or a link to one.
    """
    if path.exists() and not path.is_file():
        raise _not_ordinary(path)
    return path


def open_to_read(path: Path) -> BufferedReader:
    """Open an ordinary file, or a link to one.

    Raises:
        InputError: it is a folder, a pipe or a device.
        OSError: it is missing or cannot be opened.
    """
    return open(_checked(os.open(path, _TO_READ), path), "rb")


def read_text(path: Path) -> str:
    """The text of an ordinary file; raises as `open_to_read`, and UnicodeDecodeError."""
    with open_to_read(path) as file:
        return file.read().decode("utf-8")


def open_to_append(path: Path) -> BinaryIO:
    """Open an ordinary file to read and to append to it; it is made if there is none.

    A file with a second name elsewhere (a hard link) is replaced by a copy, and that is opened.

    Raises:
        InputError: it is a link, or not an ordinary file.
        OSError: it cannot be opened.
    """
    if path.is_symlink():
        raise _is_a_link(path)
    descriptor = _checked(os.open(path, _TO_APPEND, _NEW_MODE), path)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        _copy_in_place(path)
        return open_to_append(path)
    return open(descriptor, "a+b")


def _copy_in_place(path: Path) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    with open_to_read(path) as file, open_new(aside) as copy:
        copy.write(file.read())
        copy.flush()
        os.fsync(copy.fileno())
    aside.replace(path)


def open_new(path: Path) -> BinaryIO:
    """Open a new file to write, in place of any file or link of that name, but not of a device."""
    if path.is_symlink() or path.is_file():  # a file may have a second name elsewhere
        path.unlink()
    return os.fdopen(os.open(path, _TO_WRITE, _NEW_MODE), "wb")


def refuse_link(path: Path) -> Path:
    """The path itself.

    Raises:
        InputError: it is a link.
    """
    if path.is_symlink():
        raise _is_a_link(path)
    return path


def refuse_links(folder: Path) -> None:
    """Check that a folder, if it exists, holds ordinary files and folders alone, at any depth.

    Folders named ``wandb`` are left out: Weights & Biases keeps links in that of a run, and nothing
    else reads or writes there.

    Raises:
        InputError: there is a link, a pipe or a device.
    """
    for entry in _entries(folder):
        if entry.is_symlink():
            raise _is_a_link(Path(entry))
        if not entry.is_dir() and not entry.is_file():
            raise _not_ordinary(Path(entry))


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder; links to folders are not followed."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:  # it is not there, or has just been removed by the process that uses it
        return
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name == "wandb":
            continue
        yield entry
        if is_folder:
            yield from _entries(entry.path)


def _checked(descriptor: int, path: Path) -> int:
    """The descriptor of an ordinary file; that of anything else is closed."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_ordinary(path)
    return descriptor


def _is_a_link(path: Path) -> InputError:
    return InputError(
        f"{path} is a link, which might lead anywhere: replace it with what it points to"
    )


def _not_ordinary(path: Path) -> InputError:
    return InputError(f"{path} is not an ordinary file: remove it, or restore it from a copy")
