"""Finds documents that occur more than once, as a reduction over blocks.

Documents are numbered over all blocks. A job takes those whose digests lie in one range, so that
its memory does not grow with the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crammed.data.corpus import Corpus
from crammed.data.preparing.cleaning.near import links_of, repeats_of
from crammed.data.preparing.cleaning.words import Hashes
from crammed.data.preparing.read.cleaned import Block
from crammed.data.preparing.read.cleaning_job import minhash_bands
from crammed.data.shards import read_done, sorted_digests, write_done
from crammed.files.hashes import json_hash
from crammed.files.writing import save_array, write_arrays
from crammed.machine.engine import Engine

AT_ONCE = 2_000_000
"""About how many documents a job compares."""

_Numbers = NDArray[np.int64]
ALL = 1 << 64
_DIGESTS = "digests.bin"
"""The first 8 bytes of each training document's digest as little-endian integers, ascending."""


def write_listing(folder: Path, blocks: Sequence[Block]) -> Path:
    """Write which blocks there are, for jobs that look at all of them; returns the file."""
    folders = {path: n for n, path in enumerate(dict.fromkeys(each.folder for each in blocks))}
    listed = [[folders[each.folder], each.number, each.first, each.documents] for each in blocks]
    values = {"folders": list(map(str, folders)), "blocks": listed}
    file = folder / f"blocks-{json_hash(values)}.json"
    write_done(file, values)
    return file


@lru_cache(maxsize=1)
def read_listing(file: Path) -> list[Block]:
    """What `write_listing` wrote: the blocks, without their sources and contents."""
    listed = read_done(file)
    assert listed is not None
    folders = list(map(Path, listed["folders"]))
    return [Block(folders[at], n, 0, first, count, "") for at, n, first, count in listed["blocks"]]


class Range(NamedTuple):
    """A range of hashes, [low, high), in the blocks that a file lists."""

    listing: Path
    low: int
    high: int


def ranges(listing: Path, hashes: int, at_once: int) -> Iterator[Range]:
    """Equal ranges of all hashes, each with about `at_once` of the `hashes` that there are."""
    count = 1 + hashes // at_once
    for low, high in pairwise(number * ALL // count for number in range(count + 1)):
        yield Range(listing, low, high)


def digests_between(block: Block, low: int, high: int) -> tuple[Hashes, _Numbers]:
    """Digests [n, 2] of a block's documents in a range, ascending, and the documents' numbers."""
    every = sorted_digests(block.path)
    begin, end = (place(every[:, 0], bound) for bound in (low, high))
    found = np.array(every[begin:end])
    numbers = found[:, 2].astype(np.int64)
    used = numbers < block.documents
    return found[used, :2], numbers[used] + block.first


def place(ascending: Hashes, bound: int) -> int:
    """How many hashes are below the bound, which may be beyond 64 bits."""
    return len(ascending) if bound >= ALL else int(np.searchsorted(ascending, np.uint64(bound)))


def exact_duplicates(engine: Engine, listing: Path, documents: int) -> Iterator[_Numbers]:
    """The numbers of the documents whose text has occurred before."""
    return engine.map(_repeated, ranges(listing, documents, AT_ONCE))


def _repeated(job: Range) -> _Numbers:
    found = [digests_between(block, job.low, job.high) for block in read_listing(job.listing)]
    digests = np.concatenate([each for each, _ in found])
    numbers = np.concatenate([each for _, each in found])
    return numbers[repeats(digests)]


def repeats(digests: Hashes) -> NDArray[np.bool_]:
    """[n] true for every digest that has occurred before; digests [n, 2]."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones keep their order
    ranked = digests[order]
    marks = np.zeros(len(digests), bool)
    marks[order[1:]] = (ranked[1:] == ranked[:-1]).all(axis=1)
    return marks


def marked_digests(
    engine: Engine, listing: Path, marks: NDArray[np.bool_], folder: Path
) -> Iterator[Hashes]:
    """The first halves of the digests of the documents that are marked, [n], range by range.

    Args:
        folder: for the marks, which jobs read.
    """
    file = folder / "marked.npy"
    save_array(file, marks)
    return engine.map(_marked, ((each, file) for each in ranges(listing, len(marks), AT_ONCE)))


def _marked(job: tuple[Range, Path]) -> Hashes:
    some, file = job
    marks = np.load(file, mmap_mode="r")
    found = [digests_between(block, some.low, some.high) for block in read_listing(some.listing)]
    return np.concatenate([digests[marks[numbers], 0] for digests, numbers in found])


def known_documents(corpus: Corpus | None) -> Hashes | None:
    """What `_DIGESTS` of a corpus holds; None if there is none, as in corpora of older versions."""
    if corpus is None or _DIGESTS not in corpus.manifest["files"]:
        return None
    return np.fromfile(corpus.path / _DIGESTS, "<u8").astype(np.uint64, copy=False)


def write_known(folder: Path, known: Iterable[Hashes]) -> None:
    """Write `_DIGESTS`.

    Args:
        known: digests in any order; none in an array is lower than those in the arrays before.
    """
    write_arrays(folder / _DIGESTS, (np.unique(some).astype("<u8") for some in known))


def among(block: Block, known: Hashes) -> _Numbers:
    """The numbers of the documents of a block that are known."""
    every, numbers = digests_between(block, 0, ALL)
    return numbers[occur(every[:, 0], known)]


def occur(hashes: Hashes, ascending: Hashes) -> NDArray[np.bool_]:
    """[n] which hashes occur among others, of which there may be so many that none are copied."""
    first = np.searchsorted(ascending, hashes)
    found: NDArray[np.bool_] = first < np.searchsorted(ascending, hashes, side="right")
    return found


def near_duplicates(engine: Engine, listing: Path, documents: int, bands: int) -> _Numbers:
    """The numbers of the documents that are linked to an earlier one by sharing a MinHash band.

    Takes 16 bytes of memory for each document that is linked to another.
    """
    jobs = ((each, band) for band in range(bands) for each in ranges(listing, documents, AT_ONCE))
    return repeats_of(engine.map(_linked, jobs))


def _linked(job: tuple[Range, int]) -> _Numbers:
    some, band = job
    hashes, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for block in read_listing(some.listing):
        own = minhash_bands(block.path)[band, : block.documents]
        places = np.flatnonzero((own >= np.uint64(some.low)) & (own <= np.uint64(some.high - 1)))
        hashes.append(np.asarray(own[places]))
        numbers.append(places + block.first)
    return links_of(np.concatenate(hashes), np.concatenate(numbers))
