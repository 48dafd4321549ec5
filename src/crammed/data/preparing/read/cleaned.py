"""The cleaned text: blocks as they were read, and the shards that it is cut into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from crammed.data import shards
from crammed.data.preparing.cleaning.steps import FOR_ENGLISH
from crammed.data.preparing.read.cleaning_job import (
    Cleaned,
    beginning_of,
    changed_of,
    raw_documents,
    samples_of,
)
from crammed.data.preparing.read.reading_job import Lost, Reading
from crammed.data.preparing.read.source import Source
from crammed.data.samples import MOST_SAMPLES, Sample, sample
from crammed.data.shards import Slice, Slices, block_path, load
from crammed.errors import InputError
from crammed.quantity import counted


@dataclass(frozen=True)
class ReadBlocks:
    """The blocks of some parts that were read together.

    Attributes:
        source: place of their source.
        run: number of the run within it: shards hold blocks of one run, but of any of its parts.
        folder: where the blocks are.
        reading: what all jobs together have read.
    """

    source: int
    run: int
    folder: Path
    reading: Reading = field(default_factory=Reading)

    def add(self, reading: Reading) -> None:
        """Add what a job has read."""
        whole = self.reading
        for number, block in reading.blocks.items():
            last = whole.blocks[next(reversed(whole.blocks))] if whole.blocks else block
            # Equal counts are kept once, and the origin has served its purpose.
            dropped = last.dropped if block.dropped == last.dropped else block.dropped
            changed = last.changed if block.changed == last.changed else block.changed
            whole.blocks[number] = replace(block, dropped=dropped, changed=changed, origin="")
        whole.skipped.extend(reading.skipped)
        whole.ignored.update(reading.ignored)
        for lost in reading.lost:
            if whole.lost and whole.lost[-1].part == lost.part:  # pieces of a large part
                before = whole.lost.pop()
                lost = Lost(lost.part, before.records + lost.records, before.first)
            whole.lost.append(lost)


@dataclass(frozen=True, slots=True)
class Block:
    """A block whose first `documents` documents are used.

    Attributes:
        folder, number: where it is.
        source: place of its source.
        first: number of its first document, counted over all blocks.
        content: hash of all of its documents.
    """

    folder: Path
    number: int
    source: int
    first: int
    documents: int
    content: str

    @property
    def path(self) -> Path:
        return block_path(self.folder, self.number)


@dataclass(frozen=True, slots=True)
class Shard:
    """About 16 million characters of one source."""

    source: Source
    slices: Slices
    characters: int

    @property
    def documents(self) -> int:
        return sum(map(len, self.slices))


@dataclass
class CleanedText:
    """All cleaned text.

    Attributes:
        dropped: for each step, the numbers of documents and characters that it dropped.
        changed: for each step, the number of documents that it changed.
        folders: for each source, the folders of its blocks, which also list the parts read.
        skipped: parts that were left out, as in `Reading`.
        lost: damaged records of other parts.
        ignored: number of files of unknown formats in archives, by suffix.
    """

    sources: Sequence[Source]
    blocks: list[Block] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    documents: int = 0
    characters: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    folders: list[list[Path]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, sources: Sequence[Source], read: Sequence[ReadBlocks]) -> CleanedText:
        """Put together what was read."""
        text = cls(sources, folders=[[] for _ in sources])
        by_source = {place: list(some) for place, some in groupby(read, lambda one: one.source)}
        for place, source in enumerate(sources):
            used = text._within_limit(source, by_source.get(place, []))
            for _, run in groupby(used, lambda one: one[0].run):
                text.shards += text._cut(place, run)
        return text

    def _within_limit(
        self, source: Source, read: Sequence[ReadBlocks]
    ) -> Iterator[tuple[ReadBlocks, int, Cleaned]]:
        """The blocks up to the source's limit, the last of them as far as it is used."""
        left = inf if source.max_characters is None else source.max_characters
        for each in read:
            if left <= 0:
                return
            reading = each.reading
            if reading.blocks or not reading.skipped:
                self.folders[each.source].append(each.folder)
            self.skipped += reading.skipped
            self.lost += reading.lost
            self.ignored.update(reading.ignored)
            for number, block in reading.blocks.items():
                if left <= 0:
                    break
                path = block_path(each.folder, number)
                if block.read_characters >= left:
                    block = _up_to(path, block, int(left))
                left -= block.read_characters
                self._count(source, block, path)
                yield each, number, block

    def _count(self, source: Source, block: Cleaned, path: Path) -> None:
        self.documents += block.documents
        self.characters += block.characters
        for step, counts in block.dropped.items():
            totals = self.dropped.setdefault(step, [0, 0])
            totals[0] += counts[0]
            totals[1] += counts[1]
            if totals[0] - counts[0] < MOST_SAMPLES:
                self._sample(source, path, step, counts[0])
        for step, documents in block.changed.items():
            before = self.changed.get(step, 0)
            self.changed[step] = before + documents
            if before < MOST_SAMPLES:
                self._sample(source, path, changed_of(step), documents)

    def _sample(self, source: Source, block: Path, what: str, most: int) -> None:
        if most:
            texts = samples_of(block)[what][:most]
            self.samples += [sample(what, source.name, text) for text in texts]

    def _cut(
        self, place: int, blocks: Iterable[tuple[ReadBlocks, int, Cleaned]]
    ) -> Iterator[Shard]:
        """Cut a run of blocks after every 16 million characters, counted before cleaning."""
        source = self.sources[place]
        gathered: list[Slice] = []
        waiting = characters = 0
        for read, number, block in blocks:
            folder = read.folder
            first = self.blocks[-1].first + self.blocks[-1].documents if self.blocks else 0
            self.blocks.append(Block(folder, number, place, first, block.documents, block.content))
            begin = 0
            if waiting + block.read_characters >= shards.SHARD_CHARACTERS:
                path = block_path(folder, number)
                lengths = load(path, "lengths.npy")
                ends, waiting = _cuts(path, block, waiting)
                for end in ends:
                    own = int(lengths[begin:end].sum(dtype=np.int64))
                    gathered.append(Slice(folder, number, begin, end))
                    yield Shard(source, tuple(gathered), characters + own)
                    gathered, begin, characters = [], end, 0
                characters += int(lengths[begin : block.documents].sum(dtype=np.int64))
            else:
                waiting += block.read_characters
                characters += block.characters
            if waiting:
                gathered.append(Slice(folder, number, begin, block.documents))
        if waiting:
            yield Shard(source, tuple(gathered), characters)

    def mostly_dropped(self) -> Iterator[str]:
        """A line on each step made for English that dropped most of the documents it was given."""
        given = self.documents + sum(documents for documents, _ in self.dropped.values())
        for step, (documents, _) in self.dropped.items():
            if step in FOR_ENGLISH and documents > given / 2:
                yield (
                    f"{step} dropped {documents:,} of {counted(given, 'document')}: its rules are "
                    "made for English (docs/data.md)"
                )
            given -= documents

    def require_documents(self) -> None:
        """Refuse to continue if no text is left.

        Raises:
            InputError: no part could be read, or cleaning dropped every document.
        """
        if not self.documents:
            whys = [each["why"] for each in self.skipped] + [each.first for each in self.lost]
            why = f": {whys[0]}" if whys else ", no document is left"
            raise InputError(f"the data holds no text{why}")


def _cuts(path: Path, block: Cleaned, waiting: int) -> tuple[list[int], int]:
    """How many of a block's documents come before the end of each shard that ends in it.

    Args:
        waiting: characters, before cleaning, of the shard that the block goes on with.

    Returns:
        These numbers, and the characters of the shard that is still open.
    """
    characters, dropped_by, _ = raw_documents(path)[:, : block.read]
    sums = np.cumsum(characters, dtype=np.int64)
    kept = np.cumsum(dropped_by == 0)
    ends: list[int] = []
    before = -waiting
    while (at := int(np.searchsorted(sums, before + shards.SHARD_CHARACTERS))) < len(sums):
        ends.append(int(kept[at]))
        before = int(sums[at])
    return ends, int(sums[-1]) - before


def _up_to(path: Path, block: Cleaned, most: int) -> Cleaned:
    """The beginning of a block: no document begins once `most` characters have been read."""
    characters, _, _ = raw_documents(path)
    ends = np.cumsum(characters, dtype=np.int64)
    return beginning_of(path, block, int(np.searchsorted(ends, most)) + 1)
