"""Compares a corpus with its hashes, once on each machine.

That a corpus matched its hashes is remembered in the user's cache folder rather than beside the
corpus, which may lie on a disk that several machines read, each through its own memory and network.
The note holds the size, modification time and inode number of every file, so a file that has since
been written to or replaced is compared again. Damage that changes none of these, such as a bit that
a disk loses later, is found only by ``crammed data verify``.
"""

from __future__ import annotations

import contextlib

from crammed.data.corpus import Corpus, is_damaged
from crammed.errors import InputError
from crammed.files.folders import cache_folder
from crammed.files.hashes import json_hash
from crammed.files.writing import read_json, write_json
from crammed.terminal.progress import Progress


def verify_once(corpus: Corpus, progress: Progress) -> None:
    """Compare the files of a corpus with their hashes, unless this machine has already done so.

    Raises:
        InputError: some differ.
    """
    files = {name: (corpus.path / name).stat() for name in corpus.manifest["files"]}
    states = {name: [s.st_size, s.st_mtime_ns, s.st_ino] for name, s in files.items()}
    seen = json_hash([corpus.sha256, states])
    note = cache_folder() / "corpora" / f"{json_hash(str(corpus.path.resolve()))}.json"
    try:
        known = (read_json(note) or {}).get("seen")
    except InputError:  # only a note, not worth an error
        known = None
    if known == seen:
        return
    with progress.task("comparing the corpus with its hashes"):
        damaged = list(corpus.damaged())
    if damaged:
        raise is_damaged(corpus.path, ", ".join(damaged))
    with contextlib.suppress(InputError, OSError):  # unwritable: every run compares
        write_json(note, {"corpus": corpus.sha256, "seen": seen})
