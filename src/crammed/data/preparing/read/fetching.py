"""Copies the files of sources that are named by an address to this machine, before they are read.

The copies lie with the other intermediate results, so one that is complete is not fetched again by
a later call, unless what its server says of the file has changed. Their hashes identify them, as
those of any file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from crammed.config import DataConfig, SourceConfig
from crammed.data.elsewhere import copy_all
from crammed.data.preparing.read.room import check_copies, written
from crammed.data.preparing.read.source import ignored_files
from crammed.errors import InputError
from crammed.files.addresses import last_part, without_secrets
from crammed.files.hashes import json_hash
from crammed.formats.documents import format_of, has_suffix, kind_of
from crammed.formats.remote import Remote, RemoteFile
from crammed.terminal.progress import Progress


def fetched(data: DataConfig, folder: Path, progress: Progress) -> DataConfig:
    """The same sources, with a folder on this machine in place of every address.

    Raises:
        InputError: an address names nothing, or cannot be reached.
    """
    sources = [
        _copied(source, data, folder / "remote", progress) if source.is_remote else source
        for source in data.sources
    ]
    return data.model_copy(update={"sources": tuple(sources)})


def _may_be_text(file: RemoteFile) -> bool:
    """Whether its name says that it is of a known format, or does not say what it is."""
    return format_of(file.below) is not None or not has_suffix(file.below)


def _copied(
    source: SourceConfig, data: DataConfig, folder: Path, progress: Progress
) -> SourceConfig:
    remote, shown = Remote.at(source.path), without_secrets(source.path)
    files = remote.files()
    several = remote.is_glob or remote.is_folder
    if several and (source.format or data.format) == "auto":
        others = Counter(kind_of(file.below) for file in files if not _may_be_text(file))
        files = [file for file in files if _may_be_text(file)]
        if files and others:
            progress.line(f"sources  {ignored_files(others)}")
    if not files:
        raise InputError(f"{shown} holds no file of a known format")
    own = folder / json_hash(source.path)[:16]
    name = "files" if remote.is_glob else last_part(source.path)
    place = own / "copies" / name if several else own / "copies"

    check_copies(sum(file.size or 0 for file in files) - written([place]), folder)
    copies = set[Path]()

    def fetch(file: RemoteFile) -> int:
        copy = remote.fetch(remote.look_up(file), place, own / "notes")
        copies.add(copy)
        return copy.stat().st_size

    copy_all(fetch, files, f"copying {shown}", progress)
    for left in place.rglob("*"):  # what the address named earlier
        if left not in copies and not left.is_dir():
            left.unlink()
    path = place if several else place / name
    return source.model_copy(update={"path": str(path), "name": source.name or name})
