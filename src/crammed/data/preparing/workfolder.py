"""The folder in which a corpus is prepared: when it is kept, and when it is removed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.preparing.read.cleaned import CleanedText
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import WORK
from crammed.files.locks import FolderLock
from crammed.files.regular import refuse_link
from crammed.formats.lines import printable


class _Worthless(InputError):
    """Nothing that was made is worth keeping."""


def _folders_near(out: Path) -> tuple[Path, Path]:
    """Where to work if `out` exists, as a mounted volume does, and where if not."""
    return refuse_link(out / WORK), refuse_link(out.with_name(f".{out.name}{WORK}"))


def _folder_near(out: Path) -> Path:
    inside, beside = _folders_near(out)
    return inside if out.is_dir() and not beside.exists() else beside


_WORTH = ("parts/*/*.clean.json", "remote/*/notes/*.json")
"""Files that show that something was finished: text read, or a file copied from elsewhere."""


@contextmanager
def work_folder(work: Path | None, out: Path) -> Iterator[Path]:
    """A locked folder for intermediate results: `work`, or one beside `out`, or in it.

    That of `out` is kept if the work fails after something was finished, so that the
    corrected command can continue from there.
    """
    folder = work or _folder_near(out)
    with FolderLock(folder, work or out, "lock"):
        try:
            with _faults(folder, work or out):
                yield folder
        except InputError as error:
            if work is not None:
                raise
            if isinstance(error, _Worthless) or not any(map(any, map(folder.glob, _WORTH))):
                shutil.rmtree(folder)
                raise
            raise InputError(
                f"{error}; what is finished is kept, and the corrected command continues from there"
            ) from error
        if work is None:
            shutil.rmtree(folder)


@contextmanager
def _faults(folder: Path, named: Path) -> Iterator[None]:
    """Turn failures of the machine, such as running out of memory, into an `InputError`.

    If a disk is full, the message names `named`, the place given for the folder, which is another
    one if the folder does not outlive them.
    """
    try:
        with disk_faults(named):
            yield
    except (pa.ArrowInvalid, EOFError) as error:  # in our own files; sources have `read_faults`
        what = "are damaged: remove them and begin again"
        if folder != named:  # it goes with this error
            what = "were damaged and have been removed: repeat the command"
        raise _Worthless(f"the intermediate results in {folder} {what}") from error
    except OSError as error:
        if error.errno not in _SHORT_OF_MEMORY:
            place = f" {printable(error.filename)}" if error.filename else ""
            raise InputError(f"cannot read or write{place}: {error.strerror or error}") from error
        raise _memory_ran_out() from error
    except (MemoryError, pa.ArrowException) as error:  # Arrow's other errors are memory limits
        raise _memory_ran_out() from error
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise _memory_ran_out() from error


_SHORT_OF_MEMORY = (errno.ENOMEM, errno.EAGAIN)
"""Memory ran out for data, or for the stack of a thread."""


def _memory_ran_out() -> InputError:
    return InputError(
        "memory ran out while preparing: raise its limit (ulimit -v), or use fewer processes with "
        "compute.workers=1"
    )


def remove_left_overs(out: Path) -> None:
    """Remove what a process killed at the very end of preparing `out` left beside it."""
    for folder in _folders_near(out):
        if folder.exists():
            with suppress(InputError), FolderLock(folder, out, "lock"):  # or its process is alive
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def refusals_of(text: CleanedText) -> Iterator[None]:
    """Mark refusals of small texts as leaving nothing worth keeping: cleaning is quick."""
    try:
        yield
    except InputError as error:
        if error.__cause__ is None and text.characters < shards.SHARD_CHARACTERS:
            raise _Worthless(str(error)) from error
        raise


def is_whole(corpus: Path) -> bool:
    """Whether a corpus is complete and matches its hashes."""
    try:
        return not any(Corpus(corpus).damaged())
    except InputError:
        return False
