"""Finds lines or paragraphs that occur in several documents, as a reduction over blocks.

One job writes the hashes of a block's lines, in ascending order. Another compares those of all
blocks that lie in one range, so that its memory does not grow with the text. Of what is in several
documents, all but the first occurrence is cut out, as in CCNet (Wenzek et al. 2020) and Dolma
(Soldaini et al. 2024). Two lines count as equal if 64 bits of their hashes are.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.config import RepeatedConfig
from crammed.data.preparing.cleaning.spans import Cuts, without_spans
from crammed.data.preparing.read.cleaned import Block
from crammed.data.preparing.select.duplicates import Range, place, ranges, read_listing
from crammed.data.samples import SAMPLES_OF_A_SHARD
from crammed.data.shards import Slice, documents, finish_stage, lengths_of, load, save, stage_result
from crammed.files.writing import save_array
from crammed.machine.engine import Engine

AT_ONCE = 4_000_000
"""About how many lines a job compares."""
_UNITS = {
    "line": re.compile(rb"[^\n]++\n?+"),
    "paragraph": re.compile(rb"(?:[^\n]++(?:\n|\Z))++\n*+"),
}


def units_of(text: bytes, config: RepeatedConfig) -> Iterator[tuple[bytes, int, int]]:
    """The lines or paragraphs of a text that are long enough.

    Yields:
        each without white space around it, and the range of bytes to cut: line ends after it, too.
    """
    for found in _UNITS[config.unit].finditer(text):
        unit = found[0].strip()
        if len(unit) >= config.min_characters <= len(unit.decode()):
            yield unit, *found.span()


# ---- jobs on blocks


def _name(config: RepeatedConfig) -> str:
    return f"{config.unit}s-{config.min_characters}"


def _write_units(job: tuple[Block, RepeatedConfig]) -> int:
    """Write the lines of a block: their hashes, ascending, and where they are; returns how many."""
    block, config = job
    name, path = _name(config), block.path
    done = stage_result(path, name)
    if done is not None and done["content"] == block.content:
        return int(done["units"])
    hashed, placed = bytearray(), array("i")
    every = Slice(block.folder, block.number, 0, len(lengths_of(path)))
    for number, text in enumerate(documents((every,))):
        for unit, start, end in units_of(text.encode(), config):
            hashed += blake2b(unit, digest_size=8).digest()
            placed.extend((number, start, end))
    hashes = np.frombuffer(hashed, ">u8").astype(np.uint64)
    order = np.argsort(hashes, kind="stable")
    save(path, f"{name}.npy", hashes[order])
    save(path, f"{name}-places.npy", np.array(placed, np.int32).reshape(-1, 3)[order])
    result = {"content": block.content, "units": len(hashes)}
    finish_stage(path, name, result, (f"{name}.npy", f"{name}-places.npy"))
    return len(hashes)


# ---- jobs on ranges of hashes


def _repeated_units(job: tuple[Range, Path, RepeatedConfig]) -> Cuts:
    """What to cut of the documents that are marked in a file, ordered by hashes."""
    some, marked, config = job
    marks, name = np.load(marked, mmap_mode="r"), _name(config)
    hashes, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    spans = [np.empty((0, 2), np.int32)]
    for block in read_listing(some.listing):
        every = load(block.path, f"{name}.npy", mapped=True)
        own = slice(place(every, some.low), place(every, some.high))
        places = load(block.path, f"{name}-places.npy", mapped=True)[own]
        used = places[:, 0] < block.documents
        used[used] = marks[places[used, 0] + block.first]
        hashes.append(every[own][used])
        numbers.append(places[used, 0].astype(np.int64) + block.first)
        spans.append(places[used, 1:])
    cut = in_several(np.concatenate(hashes), np.concatenate(numbers), config.documents)
    return Cuts(np.concatenate(numbers)[cut], np.concatenate(spans)[cut])


def in_several(
    hashes: NDArray[np.uint64], numbers: NDArray[np.int64], fewest: int
) -> NDArray[np.int64]:
    """Places of all but the first of those hashes that at least `fewest` documents have.

    Args:
        numbers: the document of each hash; of equal hashes, these ascend.
    """
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    ranked, of = hashes[order], numbers[order]
    first = np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)]
    first_of_document = first | np.append(True, of[1:] != of[:-1])[: len(of)]
    begins = np.flatnonzero(first)
    if not len(begins):
        return order
    has = np.add.reduceat(first_of_document, begins, dtype=np.int64)
    several = np.repeat(has >= fewest, np.diff(begins, append=len(first)))
    found: NDArray[np.int64] = order[several & ~first]
    return found


def repeated_units(
    engine: Engine,
    blocks: Sequence[Block],
    listing: Path,
    kept: NDArray[np.bool_],
    config: RepeatedConfig,
    folder: Path,
) -> Cuts:
    """What to cut out of the documents that are kept.

    Args:
        listing: file that lists the blocks.
        folder: for what jobs need to know.
    """
    units = sum(engine.map(_write_units, ((block, config) for block in blocks)))
    marks = folder / "kept.npy"
    save_array(marks, kept)
    jobs = ((each, marks, config) for each in ranges(listing, units, AT_ONCE))
    found = list(engine.map(_repeated_units, jobs))
    numbers = np.concatenate([each.numbers for each in found])
    spans = np.concatenate([each.spans for each in found])
    del found
    numbers <<= 31  # with the starts after them: one array is sorted in less memory than two
    numbers |= spans[:, 0]
    spans = spans[np.argsort(numbers)]
    numbers.sort()
    numbers >>= 31
    return Cuts(numbers, spans)


# ---- what is left


@dataclass(frozen=True)
class Left:
    """What cuts leave of the documents of a block.

    Attributes:
        source: place of their source.
        numbers: [k] the documents that are cut, counted over all blocks.
        characters: [k] characters left of each.
        blank: [k] whether it has no text left.
        samples: some of what is cut.
    """

    source: int
    numbers: NDArray[np.int64]
    characters: NDArray[np.int64]
    blank: NDArray[np.bool_]
    samples: list[str]


def left_of(engine: Engine, blocks: Sequence[Block], cuts: Cuts) -> Iterator[Left]:
    """What is left of the documents of each block that has some to cut, in order."""
    jobs = (
        (block, own)
        for block in blocks
        if len(own := cuts.between(block.first, block.first + block.documents))
    )
    return engine.map(_left, jobs)


def _left(job: tuple[Block, Cuts]) -> Left:
    block, cuts = job
    numbers = cuts.documents
    every = Slice(block.folder, block.number, 0, block.documents)
    texts = documents((every,), numbers.tolist())
    pairs = [(text, cuts.get(n)) for n, text in zip(numbers.tolist(), texts, strict=True)]
    left = [without_spans(text, spans) for text, spans in pairs]
    return Left(
        source=block.source,
        numbers=numbers + block.first,
        characters=np.fromiter(map(len, left), np.int64, len(left)),
        blank=np.array([not text.strip() for text in left]),
        samples=[
            text.encode()[slice(*spans[0])].decode() for text, spans in pairs[:SAMPLES_OF_A_SHARD]
        ],
    )
