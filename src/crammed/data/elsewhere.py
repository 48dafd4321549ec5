"""Copies a finished corpus from this machine to an address, or from an address to this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from crammed.data.corpus import Corpus, is_damaged
from crammed.errors import InputError
from crammed.files.addresses import without_secrets
from crammed.files.folders import check_vacant, inside, new_folder
from crammed.files.regular import read_text
from crammed.files.writing import read_json
from crammed.formats.remote import Remote
from crammed.quantity import quantity
from crammed.terminal.progress import Progress

_AT_ONCE = 8  # files that are copied
_MANIFEST = "manifest.json"

Item = TypeVar("Item")


def send(corpus: Corpus, address: str, progress: Progress) -> None:
    """Copy a corpus to an address; its manifest comes last, so what is there is complete or none.

    Raises:
        InputError: the corpus is damaged, another one is there, or the address cannot be written.
    """
    shown = without_secrets(address)
    target = Remote.at(address.rstrip("/"))
    there = target.file(_MANIFEST)
    manifest = read_text(corpus.path / _MANIFEST)
    if there is not None and target.read(there) != manifest.encode():
        raise InputError(f"{shown} holds another corpus: choose another address")
    if damaged := list(corpus.damaged()):
        raise is_damaged(corpus.path, ", ".join(damaged))

    def put(name: str) -> int:
        target.put(corpus.path / name, name)
        return (corpus.path / name).stat().st_size

    at_once = 1 if target.commits else _AT_ONCE
    copy_all(put, list(corpus.manifest["files"]), f"copying to {shown}", progress, at_once)
    put(_MANIFEST)


def receive(address: str, out: Path, progress: Progress) -> Corpus:
    """Copy the corpus at an address to the folder `out`, and compare it with its hashes.

    Raises:
        InputError: `out` is in use, or there is no intact corpus at the address.
    """
    shown = without_secrets(address)
    check_vacant(out, "folder")
    source = Remote.at(address.rstrip("/"))
    with new_folder(out) as folder:

        def get(name: str) -> int:
            place = inside(folder, name, shown)
            found = source.file(name)
            if found is None:
                raise InputError(f"{shown} is not a whole corpus: it has no {name}")
            return source.download(found, place)

        get(_MANIFEST)
        listed = (read_json(folder / _MANIFEST) or {}).get("files")
        if not isinstance(listed, dict):
            raise InputError(f"{shown} is not a corpus: its manifest lists no files")
        copy_all(get, list(listed), f"copying {shown}", progress)
        try:
            damaged = list(Corpus(folder).damaged())
        except InputError as error:  # which names a folder that is about to go
            raise InputError(f"the corpus at {shown} is damaged: copy it there again") from error
        if damaged:
            raise InputError(f"the corpus at {shown} is damaged: {', '.join(damaged)}")
    return Corpus(out)


def copy_all(
    copy: Callable[[Item], int],
    items: Sequence[Item],
    label: str,
    progress: Progress,
    at_once: int = _AT_ONCE,
) -> None:
    """Copy some files at a time and show progress; `copy` returns the size of its file in bytes."""
    done, pool = 0, ThreadPoolExecutor(at_once)
    with progress.task(label, len(items)) as task:
        try:
            for number, size in enumerate(pool.map(copy, items), 1):
                done += size
                task.update(number, f"{quantity(done, 'B')} in {number:,} of {len(items):,} files")
        finally:
            pool.shutdown(cancel_futures=True)
