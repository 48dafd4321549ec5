"""The documents of a corpus, known by their digests, so that a longer one does not repeat them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.data.corpus import Corpus
from crammed.data.preparing.read.cleaned import Block
from crammed.data.preparing.select.duplicates import digests_between
from crammed.files.writing import write_arrays

FILE = "digests.bin"
"""The first 8 bytes of each training document's digest as little-endian integers, ascending."""

Known = NDArray[np.uint64]


def known_documents(corpus: Corpus | None) -> Known | None:
    """What `FILE` of a corpus holds; None if there is none, as in corpora of older versions."""
    if corpus is None or FILE not in corpus.manifest["files"]:
        return None
    return np.fromfile(corpus.path / FILE, "<u8").astype(np.uint64)


def write_known(folder: Path, known: Iterable[Known]) -> None:
    """Write `FILE`.

    Args:
        known: digests in any order; none in an array is lower than those in the arrays before.
    """
    write_arrays(folder / FILE, (np.unique(some).astype("<u8") for some in known))


def among(block: Block, known: Known) -> NDArray[np.int64]:
    """The numbers of the documents of a block that are known."""
    every, numbers = digests_between(block, 0, 1 << 64)
    places = np.searchsorted(known, every[:, 0])
    found: NDArray[np.int64] = numbers[np.append(known, 0)[places] == every[:, 0]]
    return found
