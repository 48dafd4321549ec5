"""Comparing a corpus with its hashes, once on each machine.

That a corpus matched its hashes is remembered in the user's cache folder, not beside the corpus,
which may lie on a disk that several machines read, each through its own memory and network. What
is remembered are the size, the time of the last change and the number of every file, so that a file
that was written to or replaced since is compared again. Damage that changes none of these, as a bit
that a disk loses later, is found by ``crammed data verify`` alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.hashes import json_hash
from crammed.files.writing import read_json, write_json
from crammed.terminal.progress import Progress


def verify_once(corpus: Corpus, progress: Progress) -> None:
    """Compare the files of a corpus with their hashes, unless this machine did so already.

    Raises:
        InputError: some differ.
    """
    seen = _seen(corpus)
    note = cache_folder() / "corpora" / f"{json_hash(str(corpus.path.resolve()))}.json"
    try:
        known = (read_json(note) or {}).get("seen")
    except InputError:  # it is no more than a note
        known = None
    if known == seen:
        return
    with progress.task("comparing the corpus with its hashes"):
        damaged = list(corpus.damaged())
    if damaged:
        raise InputError(f"corpus {corpus.path} is damaged: {', '.join(damaged)}; prepare it again")
    with contextlib.suppress(InputError, OSError):  # without a place for notes, every run compares
        write_json(note, {"corpus": corpus.sha256, "seen": seen})


def _seen(corpus: Corpus) -> str:
    """A short name for the corpus and the state of its files."""
    files = {name: (corpus.path / name).stat() for name in corpus.manifest["files"]}
    states = {name: [s.st_size, s.st_mtime_ns, s.st_ino] for name, s in files.items()}
    return json_hash([corpus.sha256, states])


def cache_folder() -> Path:
    """Where this user keeps what can be made again.

    The variable CRAMMED_CACHE names it; without it, it is ``~/.cache/crammed``.
    """
    if named := os.environ.get("CRAMMED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "crammed"
