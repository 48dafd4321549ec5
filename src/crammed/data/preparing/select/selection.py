"""Decides which documents of all shards to drop, which to hold out, and how often to pack the rest.

The driver holds 8 bytes for each document here; jobs on blocks do what takes more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.cleaning.near import banding
from crammed.data.preparing.cleaning.spans import NO_CUTS, Cuts, without_spans
from crammed.data.preparing.cleaning.substring import check_size, repeated_spans
from crammed.data.preparing.read.cleaned import CleanedText, Shard
from crammed.data.preparing.read.part import FilePart
from crammed.data.preparing.select.duplicates import (
    ALL,
    among,
    digests_between,
    exact_duplicates,
    known_documents,
    near_duplicates,
    write_listing,
)
from crammed.data.preparing.select.given_heldout import SEAM_STEP, GivenHeldout
from crammed.data.preparing.select.heldout_choice import (
    SEAM,
    choose_heldout,
    heldout_beginning,
    heldout_target,
)
from crammed.data.preparing.select.selection_job import ShardSelection, Split, weighted
from crammed.data.preparing.select.units import left_of, repeated_units
from crammed.data.samples import MOST_SAMPLES, SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import documents, lengths_of
from crammed.machine.engine import Engine
from crammed.quantity import counted, quantity

BYTES_A_TOKEN = 4.0
"""Bytes of UTF-8 per token of the text to train on: 3.7 in Python's documentation and 4.3 in
English news with a vocabulary of 8,192. For other text it is a guess, but the size of a model
hardly depends on it."""
SAMPLED_SHARDS = 16
SAMPLED_DOCUMENTS = 20
WEIGHT_STEP = "weight below 1"
"""Name of the step that leaves documents out since their source has such a weight."""

Mask = NDArray[np.bool_]
Splits = dict[int, Split]


@dataclass(frozen=True)
class Selection:
    """What happens to all documents, and what each step dropped.

    Attributes:
        repeats, heldout, cuts, splits: as of `ShardSelection`, of the documents of all shards.
        ends: number of the first document after each shard.
        steps: documents kept and dropped by each step, for the manifest.
        documents, characters: totals of all documents that are kept, held out or not.
        packed_characters: total of those to train on, each counted as often as it is packed.
        sizes: characters of each shard's documents to train on, each counted once.
    """

    repeats: NDArray[np.uint16]
    heldout: Mask
    cuts: Cuts
    splits: Splits
    ends: NDArray[np.int64]
    steps: list[dict[str, Any]]
    samples: list[Sample]
    heldout_documents: int
    heldout_characters: int
    documents: int
    characters: int
    packed_characters: int
    sizes: list[int]

    def range_of(self, shard: int) -> tuple[int, int]:
        """Number of the first document of a shard, and of the first one after it."""
        return int(self.ends[shard - 1]) if shard else 0, int(self.ends[shard])

    def of_shard(self, shard: int) -> ShardSelection:
        """The part for a shard, with its documents numbered from 0."""
        start, end = self.range_of(shard)
        return ShardSelection(
            repeats=self.repeats[start:end],
            heldout=self.heldout[start:end],
            cuts=self.cuts.between(start, end),
            splits={n - start: split for n, split in self.splits.items() if start <= n < end},
        )

    @property
    def heldout_share(self) -> float:
        """Share of the kept documents' characters that is held out."""
        return self.heldout_characters / self.characters

    def describe_heldout(self) -> str:
        """Text such as ``12 documents, 31 k characters (1.3 % of the text)``."""
        what = counted(self.heldout_documents, "document")
        if self.splits:
            what = "the end of a document, since each is too large to be held out whole"
        size = f"{quantity(self.heldout_characters)} characters"
        return f"{what}, {size} ({100 * self.heldout_share:.1f} % of the text)"


def select_documents(
    text: CleanedText,
    data: DataConfig,
    engine: Engine,
    folder: Path,
    given: GivenHeldout | None = None,
    extends: Corpus | None = None,
) -> Selection:
    """Drop duplicates, hold documents out, and set how often each is packed.

    Args:
        folder: for what jobs need to know.
        given: documents to hold out instead of choosing some; their copies in the text are
            dropped.
        extends: a corpus whose documents are dropped, if exact duplicates are.

    Raises:
        InputError: there are too few documents to train on some and hold out others.
    """
    every = _Documents(text, engine)
    every.drop_repeats(data, folder, given, extends)
    repeats = every.repeats()
    if not repeats.all():  # before the choice, so that what is held out is a share of the packed
        every.drop(WEIGHT_STEP, [np.flatnonzero(repeats == 0)])

    heldout = np.zeros(len(every.kept), np.bool_)
    splits: Splits = {}
    if given is not None:
        held, documents_held = given.characters, given.documents
        if given.end is not None:
            splits = every.split_before(given.end)
    else:
        heldout, splits, held = _choose(every, data, by_line=_could_be_lines(text))
        documents_held = int(heldout.sum())
    kept, total = int(every.kept.sum()), every.total(every.kept)
    repeats[~every.kept] = 0
    if not splits:
        repeats[heldout] = 0
    return Selection(
        repeats=repeats,
        heldout=heldout,
        cuts=every.cuts,
        splits=splits,
        ends=every.ends,
        steps=every.steps,
        samples=every.samples,
        heldout_documents=documents_held,
        heldout_characters=held,
        documents=kept,
        characters=total + (held if given is not None and not splits else 0),
        packed_characters=every.total(repeats) - (held if splits else 0),
        sizes=every.by_shard(repeats > 0),
    )


def _choose(every: _Documents, data: DataConfig, *, by_line: bool) -> tuple[Mask, Splits, int]:
    """The documents to hold out, where to split them if at all, and the characters held out.

    The digest decides, so copies of a document are all held out or all trained on.
    """
    copies = sum(step["dropped"] for step in every.steps if step["step"] != WEIGHT_STEP)
    total = every.total(every.kept)
    share = 2 * heldout_target(total, data) / total if total else 1.0
    while True:  # the documents with the lowest ranks will nearly always do
        numbers, ranks = every.with_lowest_ranks(share)
        choice = choose_heldout(
            ranks,
            every.characters[numbers].astype(np.int64),
            data,
            by_line=by_line,
            dropped=copies,
            total=total if share < 1.0 else None,
        )
        if choice.complete:
            break
        share *= 4
    heldout = np.zeros(len(every.kept), np.bool_)
    heldout[numbers[choice.documents]] = True
    if choice.part is None:
        return heldout, {}, every.total(heldout)
    splits, held = every.split(np.flatnonzero(heldout), choice.part)
    return heldout, splits, held


def _could_be_lines(text: CleanedText) -> bool:
    """Whether some plain text is read as documents other than its lines."""
    files = (p for source in text.sources for p in source.parts if isinstance(p, FilePart))
    return any(file.format == ".txt" and file.options.documents != "line" for file in files)


def expected_tokens(shards: Sequence[Shard], selection: Selection) -> float:
    """About how many tokens there will be to train on: one for each `BYTES_A_TOKEN` bytes.

    Bytes per character are measured on the first documents of some shards.
    """
    characters = size = 0
    for shard in shards[:: 1 + len(shards) // SAMPLED_SHARDS]:
        for text in documents(shard.slices, range(min(SAMPLED_DOCUMENTS, shard.documents))):
            characters += len(text)
            size += len(text.encode())
    return selection.packed_characters * size / max(1, characters) / BYTES_A_TOKEN


class _Documents:
    """The cleaned documents, numbered over all blocks.

    Attributes:
        characters: [n] characters of each document.
        kept: [n] false once a step has dropped the document.
        ends: number of the first document after each shard.
        cuts: what to cut out of documents.
    """

    def __init__(self, text: CleanedText, engine: Engine) -> None:
        self._cleaned = text
        self._engine = engine
        self.ends = np.cumsum([shard.documents for shard in text.shards], dtype=np.int64)
        self.characters = np.empty(text.documents, np.int32)
        for block in text.blocks:
            own = slice(block.first, block.first + block.documents)
            self.characters[own] = lengths_of(block.path)[: block.documents]
        self.kept: Mask = np.ones(text.documents, bool)
        self.cuts = NO_CUTS
        self.steps: list[dict[str, Any]] = []
        self.samples: list[Sample] = []

    def total(self, times: NDArray[Any]) -> int:
        """Characters of all documents, each counted as often as `times` [n] says."""
        return sum(self.by_shard(times))

    def by_shard(self, times: NDArray[Any]) -> list[int]:
        """The same for each shard by itself."""
        slices = (slice(start, end) for start, end in pairwise([0, *self.ends]))
        return [int((self.characters[s].astype(np.int64) * times[s]).sum()) for s in slices]

    def drop_repeats(
        self, data: DataConfig, folder: Path, given: GivenHeldout | None, extends: Corpus | None
    ) -> None:
        """Drop what is known already and duplicates, and cut out what is repeated in others."""
        clean, blocks, count = data.clean, self._cleaned.blocks, len(self.kept)
        listing = write_listing(folder, blocks)
        if given is not None:
            self.drop("held-out documents", (given.among(block) for block in blocks))
        if clean.exact:
            if (known := known_documents(extends)) is not None:
                self.drop("documents of the corpus", (among(block, known) for block in blocks))
            self.drop("exact duplicates", exact_duplicates(self._engine, listing, count))
        if clean.near is not None:
            bands, _ = banding(clean.near)
            near = near_duplicates(self._engine, listing, count, bands)
            self.drop("near-duplicates", [near])
        if (units := clean.repeated) is not None:
            cuts = repeated_units(self._engine, blocks, listing, self.kept, units, folder)
            self.cut(f"repeated {units.unit}s", cuts)
        if clean.substring is not None:
            self.cut_repeated_passages(clean.substring)

    def drop(self, step: str, numbered: Iterable[NDArray[np.int64]]) -> None:
        """Drop documents by their numbers, and record the step with samples."""
        marked = np.zeros(len(self.kept), np.bool_)
        for numbers in numbered:
            marked[numbers] = True
        marked &= self.kept
        self.kept &= ~marked
        self._record(step, int(marked.sum()), self.total(marked))
        self._sample(step, marked)

    def _sample(self, step: str, marked: Mask) -> None:
        """Keep some of the marked documents of each shard, until there are enough of the step."""
        taken = 0
        for shard, end in zip(self._cleaned.shards, self.ends, strict=True):
            own = np.flatnonzero(marked[end - shard.documents : end])[:SAMPLES_OF_A_SHARD]
            texts = documents(shard.slices, own.tolist())
            self.samples += [sample(step, shard.source.name, text) for text in texts]
            taken += len(texts)
            if taken >= MOST_SAMPLES:
                return

    def with_lowest_ranks(self, share: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of about a share of the kept documents, ascending, and their ranks.

        The ranks are in [0, 1) and come from the digests.
        """
        bound = ALL if share >= 1.0 else int(share * 2.0**64)
        found = [digests_between(block, 0, bound) for block in self._cleaned.blocks]
        numbers = np.concatenate([numbers for _, numbers in found])
        ranks = np.concatenate([digests[:, 0] for digests, _ in found]) / 2.0**64
        own = self.kept[numbers]
        numbers, ranks = numbers[own], ranks[own]
        order = np.argsort(numbers)
        return numbers[order], ranks[order]

    def cut(self, step: str, cuts: Cuts) -> None:
        """Cut spans out of what earlier cuts have left, and drop documents without text left."""
        numbers = cuts.documents
        before = int(self.characters[numbers].sum(dtype=np.int64))
        self.cuts = self.cuts.then(cuts)
        dropped = left = samples = 0
        own = cuts if self.cuts is cuts else self.cuts.of(numbers)  # which copies them
        for each in left_of(self._engine, self._cleaned.blocks, own):
            self.characters[each.numbers] = each.characters
            self.kept[each.numbers[each.blank]] = False
            left += int(each.characters.sum())
            dropped += int(each.blank.sum())
            if samples < MOST_SAMPLES:
                source = self._cleaned.sources[each.source].name
                self.samples += [sample(f"{step}, cut", source, text) for text in each.samples]
                samples += len(each.samples)
        self._record(step, dropped, before - left, changed=len(numbers) - dropped)

    def cut_repeated_passages(self, shortest: int) -> None:
        """Cut out what occurs twice anywhere in the documents that are kept."""
        check_size(self.total(self.kept))  # no more than bytes; nothing is loaded yet
        texts = (text for shard in self._cleaned.shards for text in documents(shard.slices))
        kept = [
            without_spans(text, self.cuts.get(number)).encode()
            for number, text in enumerate(texts)
            if self.kept[number]
        ]
        spans = zip(np.flatnonzero(self.kept).tolist(), repeated_spans(kept, shortest), strict=True)
        self.cut("repeated passages", Cuts.from_spans(spans))

    def split(self, numbers: NDArray[np.int64], part: int) -> tuple[Splits, int]:
        """Where to split copies of one document, and the total characters held out of them."""
        text = without_spans(self._text(int(numbers[0])), self.cuts.get(int(numbers[0])))
        begin = heldout_beginning(text, part)
        self._record(SEAM_STEP, 0, SEAM * len(numbers), changed=len(numbers))
        splits = dict.fromkeys(numbers.tolist(), Split(begin - SEAM, begin))
        return splits, (len(text) - begin) * len(numbers)

    def split_before(self, heldout: str) -> Splits:
        """Where to split documents that hold this text; drops those with too little before it."""
        splits: Splits = {}
        dropped = characters = 0
        for shard, end in zip(self._cleaned.shards, self.ends.tolist(), strict=True):
            for number, text in enumerate(documents(shard.slices), end - shard.documents):
                begin = without_spans(text, self.cuts.get(number)).rfind(heldout)
                if begin > SEAM and self.kept[number]:
                    splits[number] = Split(begin - SEAM, begin)
                    characters += SEAM
                elif begin >= 0 and self.kept[number]:
                    self.kept[number] = False
                    dropped += 1
                    characters += len(text)
        self._record(SEAM_STEP, dropped, characters, changed=len(splits))
        return splits

    def _text(self, number: int) -> str:
        place = int(np.searchsorted(self.ends, number, side="right"))
        shard = self._cleaned.shards[place]
        begin = int(self.ends[place]) - shard.documents
        return documents(shard.slices, [number - begin])[0]

    def _record(self, step: str, dropped: int, characters: int, **more: int) -> None:
        kept = int(self.kept.sum())
        counts = {"kept": kept, "dropped": dropped, "characters": characters}
        self.steps.append({"step": step, **counts, **more})

    def repeats(self) -> NDArray[np.uint16]:
        """[n] how often each document is packed, given the weight of its source."""
        shards = [(shard.slices, shard.source.weight) for shard in self._cleaned.shards]
        return weighted(self._engine, shards)
