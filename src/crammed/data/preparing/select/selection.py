"""Decides which documents of all shards to drop, which to hold out, and how often to pack the rest.

The driver holds about 60 bytes for each document here; near-duplicates take 8 more for each band.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.data.preparing.cleaning.near import near_duplicates
from crammed.data.preparing.cleaning.substring import Span, repeated_spans, without_spans
from crammed.data.preparing.read.ingest import Shard
from crammed.data.preparing.read.source import FilePart
from crammed.data.preparing.select.given_heldout import SEAM_STEP, GivenHeldout
from crammed.data.preparing.select.heldout_choice import SEAM, choose_heldout, heldout_beginning
from crammed.data.preparing.select.selection_job import ShardSelection, Split
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import digests, documents, minhash_bands
from crammed.quantity import counted, quantity

BYTES_A_TOKEN = 4.0
"""Bytes of UTF-8 per token of the text to train on: 3.7 in Python's documentation and 4.3 in
English news with a vocabulary of 8,192. For other text it is a guess, but the size of a model
hardly depends on it."""
SAMPLED_SHARDS = 16
SAMPLED_DOCUMENTS = 20

Mask = NDArray[np.bool_]
Cuts = dict[int, list[Span]]
Splits = dict[int, Split]


@dataclass(frozen=True)
class Selection:
    """What happens to the documents of every shard, and what each step dropped.

    Attributes:
        steps: documents kept and dropped by each step, for the manifest.
        documents, characters: totals of all documents that are kept, held out or not.
        packed_characters: total of those to train on, each counted as often as it is packed.
    """

    shards: list[ShardSelection]
    steps: list[dict[str, Any]]
    samples: list[Sample]
    heldout_documents: int
    heldout_characters: int
    documents: int
    characters: int
    packed_characters: int

    @property
    def heldout_share(self) -> float:
        """Share of the kept documents' characters that is held out."""
        return self.heldout_characters / self.characters

    def describe_heldout(self) -> str:
        """Text such as ``12 documents, 31 k characters (1.3 % of the text)``."""
        what = counted(self.heldout_documents, "document")
        if any(shard.splits for shard in self.shards):
            what = "the end of a document, since each is too large to be held out whole"
        size = f"{quantity(self.heldout_characters)} characters"
        return f"{what}, {size} ({100 * self.heldout_share:.1f} % of the text)"


def select_documents(
    shards: Sequence[Shard], data: DataConfig, given: GivenHeldout | None = None
) -> Selection:
    """Drop duplicates, hold documents out, and set how often each is packed.

    Args:
        given: documents to hold out instead of choosing some; their copies in the shards are
            dropped.

    Raises:
        InputError: there are too few documents to train on some and hold out others.
    """
    every = _Documents(shards)
    if given is not None:
        every.drop("held-out documents", given.among(every.digests))
    if data.clean.exact:
        every.drop("exact duplicates", exact_duplicates(every.digests))
    if data.clean.near is not None:
        bands = [minhash_bands(shard.path) for shard in shards]
        every.drop("near-duplicates", np.concatenate(near_duplicates(bands)))
    cuts: Cuts = {}
    if data.clean.substring is not None:
        cuts = every.cut_repeated_passages(data.clean.substring)

    heldout = np.zeros(len(every.kept), np.bool_)
    splits: Splits = {}
    if given is not None:
        held, documents_held = given.characters, given.documents
        if given.end is not None:
            splits = every.split_before(given.end, cuts)
    else:
        heldout, splits, held = _choose(every, data, cuts, by_line=_could_be_lines(shards))
        documents_held = int(heldout.sum())
    total = int(every.characters[every.kept].sum())
    repeats = every.repeats()
    repeats[~every.kept] = 0
    if not splits:
        repeats[heldout] = 0
    return Selection(
        shards=list(every.by_shard(repeats, heldout, cuts, splits)),
        steps=every.steps,
        samples=every.samples,
        heldout_documents=documents_held,
        heldout_characters=held,
        documents=int(every.kept.sum()),
        characters=total + (held if given is not None and not splits else 0),
        packed_characters=int((repeats * every.characters).sum()) - (held if splits else 0),
    )


def _choose(
    every: _Documents, data: DataConfig, cuts: Cuts, *, by_line: bool
) -> tuple[Mask, Splits, int]:
    """The documents to hold out, where to split them if at all, and the characters held out.

    The digest decides, so copies of a document are all held out or all trained on.
    """
    ranks = every.digests[every.kept, 0] / 2.0**64
    copies = sum(step["dropped"] for step in every.steps)
    kept = every.characters[every.kept]
    choice = choose_heldout(ranks, kept, data, by_line=by_line, dropped=copies)
    heldout = np.zeros(len(every.kept), np.bool_)
    heldout[every.kept] = choice.documents
    if choice.part is None:
        return heldout, {}, int(every.characters[heldout].sum())
    splits, held = every.split(np.flatnonzero(heldout), choice.part, cuts)
    return heldout, splits, held


def _could_be_lines(shards: Sequence[Shard]) -> bool:
    """Whether some plain text is read as documents other than its lines."""
    sources = {id(shard.source): shard.source for shard in shards}.values()
    files = (part for source in sources for part in source.parts if isinstance(part, FilePart))
    return any(file.format == ".txt" and file.options.documents != "line" for file in files)


def expected_tokens(shards: Sequence[Shard], selection: Selection) -> float:
    """About how many tokens there will be to train on: one for each `BYTES_A_TOKEN` bytes.

    Bytes per character are measured on the first documents of some shards.
    """
    characters = size = 0
    for shard in shards[:: 1 + len(shards) // SAMPLED_SHARDS]:
        for text in documents(shard.path, range(min(SAMPLED_DOCUMENTS, shard.cleaned.documents))):
            characters += len(text)
            size += len(text.encode())
    return selection.packed_characters * size / max(1, characters) / BYTES_A_TOKEN


class _Documents:
    """The cleaned documents of all shards, numbered in order.

    Attributes:
        digests: [n, 2] two integers that identify the text.
        characters: [n] characters of each document.
        kept: [n] false once a step has dropped the document.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        found = [digests(shard.path) for shard in shards]
        self._sizes = [len(characters) for _, characters in found]
        self.digests = np.concatenate([pairs for pairs, _ in found])
        self.characters = np.concatenate([characters for _, characters in found])
        self.kept: Mask = np.ones(len(self.characters), bool)
        self.steps: list[dict[str, Any]] = []
        self.samples: list[Sample] = []

    def drop(self, step: str, marked: Mask) -> None:
        """Drop the marked documents, and record the step with samples from every shard."""
        dropped = np.flatnonzero(self.kept & marked)
        self.kept[dropped] = False
        self._record(step, len(dropped), int(self.characters[dropped].sum()))
        begins = np.cumsum(self._sizes) - self._sizes
        for shard, begin, size in zip(self._shards, begins, self._sizes, strict=True):
            own = dropped[(dropped >= begin) & (dropped < begin + size)] - begin
            texts = documents(shard.path, own[:SAMPLES_OF_A_SHARD].tolist())
            self.samples.extend(sample(step, shard.source.name, text) for text in texts)

    def cut_repeated_passages(self, shortest: int) -> Cuts:
        """The spans to cut out of each document; drops documents left without text."""
        numbers = np.flatnonzero(self.kept)
        texts = [text.encode() for shard in self._shards for text in documents(shard.path)]
        spans = repeated_spans([texts[number] for number in numbers], shortest)
        cuts: Cuts = {}
        dropped = characters = 0
        for number, own in zip(numbers.tolist(), spans, strict=True):
            if not own:
                continue
            cuts[number] = own
            text = texts[number].decode()
            left = without_spans(text, own)
            characters += len(text) - len(left)
            self.characters[number] = len(left)
            if not left.strip():
                self.kept[number] = False
                dropped += 1
        self._record("repeated passages", dropped, characters, changed=len(cuts) - dropped)
        return cuts

    def split(self, numbers: NDArray[np.int64], part: int, cuts: Cuts) -> tuple[Splits, int]:
        """Where to split copies of one document, and the total characters held out of them."""
        text = without_spans(self._text(int(numbers[0])), cuts.get(int(numbers[0]), ()))
        begin = heldout_beginning(text, part)
        self._record(SEAM_STEP, 0, SEAM * len(numbers), changed=len(numbers))
        splits = dict.fromkeys(numbers.tolist(), Split(begin - SEAM, begin))
        return splits, (len(text) - begin) * len(numbers)

    def split_before(self, heldout: str, cuts: Cuts) -> Splits:
        """Where to split documents that hold this text; drops those with too little before it."""
        splits: Splits = {}
        begins = np.cumsum(self._sizes) - self._sizes
        dropped = characters = 0
        for shard, first in zip(self._shards, begins.tolist(), strict=True):
            for number, text in enumerate(documents(shard.path), first):
                begin = without_spans(text, cuts.get(number, ())).rfind(heldout)
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
        for shard, size in zip(self._shards, self._sizes, strict=True):
            if number < size:
                return documents(shard.path, [number])[0]
            number -= size
        raise IndexError(number)

    def _record(self, step: str, dropped: int, characters: int, **more: int) -> None:
        kept = int(self.kept.sum())
        counts = {"kept": kept, "dropped": dropped, "characters": characters}
        self.steps.append({"step": step, **counts, **more})

    def repeats(self) -> NDArray[np.float64]:
        """[n] how often each document is packed, given the weight of its source."""
        weights = np.repeat([shard.source.weight for shard in self._shards], self._sizes)
        return repeats_of(self.digests, weights)

    def by_shard(
        self, repeats: NDArray[np.float64], heldout: Mask, cuts: Cuts, splits: Splits
    ) -> Iterator[ShardSelection]:
        """The selection split into shards, each with its documents numbered from 0."""
        start = 0
        for size in self._sizes:
            end = start + size
            yield ShardSelection(
                repeats=repeats[start:end].astype(np.uint16),
                heldout=heldout[start:end],
                cuts={n - start: spans for n, spans in cuts.items() if start <= n < end},
                splits={n - start: split for n, split in splits.items() if start <= n < end},
            )
            start = end


def exact_duplicates(digests: NDArray[np.uint64]) -> Mask:
    """[n] true for every digest that has occurred before; digests [n, 2]."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones keep their order
    ranked = digests[order]
    marks = np.zeros(len(digests), bool)
    marks[order[1:]] = (ranked[1:] == ranked[:-1]).all(axis=1)
    return marks


def repeats_of(
    digests: NDArray[np.uint64], weights: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """[n] how often to pack documents, given digests [n, 2] and weights; whole numbers.

    The digest decides which documents are packed once more for the fraction of a weight.
    """
    whole: NDArray[np.float64] = np.floor(weights) + np.zeros(len(digests))
    return whole + (digests[:, 1] / 2.0**64 < np.mod(weights, 1.0))
