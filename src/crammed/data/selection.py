"""Selects among the documents of all shards: which to drop, to hold out, and to pack how often.

The driver holds some 60 bytes for each document here, and for near-duplicates 8 more for each band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.data.cleaning.near import near_duplicates
from crammed.data.cleaning.substring import Span, repeated_spans, without_spans
from crammed.data.ingest import Shard
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shard_selection import ShardSelection
from crammed.data.shards import digests, documents, minhash_bands
from crammed.errors import InputError

CHARACTERS_A_TOKEN = 5.0
"""More than any English tokenizer packs into a token, so that the held-out part is large enough."""
LARGEST_HELDOUT = 0.05
"""Largest share of the characters to hold out for the sake of `data.heldout_rows`."""

Mask = NDArray[np.bool_]
Cuts = dict[int, list[Span]]


@dataclass(frozen=True)
class Selection:
    """What happens to the documents of every shard, and what each step dropped.

    Attributes:
        steps: for the manifest, documents kept and dropped by each step.
    """

    shards: list[ShardSelection]
    steps: list[dict[str, Any]]
    samples: list[Sample]
    heldout_documents: int
    heldout_characters: int


def select_documents(shards: Sequence[Shard], data: DataConfig) -> Selection:
    """Drop exact and near-duplicates, hold documents out, and set how often each is packed.

    Raises:
        InputError: there are too few documents to train on some and hold out others.
    """
    every = _Documents(shards)
    if data.clean.exact:
        every.drop("exact duplicates", exact_duplicates(every.digests))
    if data.clean.near is not None:
        bands = [minhash_bands(shard.path) for shard in shards]
        every.drop("near-duplicates", np.concatenate(near_duplicates(bands)))
    cuts: Cuts = {}
    if data.clean.substring is not None:
        cuts = every.cut_repeated_passages(data.clean.substring)

    # The digest decides, so all copies of a document are on the same side.
    ranks = every.digests[:, 0] / 2.0**64
    threshold = heldout_threshold(ranks[every.kept], every.characters[every.kept], data)
    heldout = every.kept & (ranks < threshold)
    repeats = every.repeats()
    repeats[~every.kept | heldout] = 0
    return Selection(
        shards=list(every.by_shard(repeats, heldout, cuts)),
        steps=every.steps,
        samples=every.samples,
        heldout_documents=int(heldout.sum()),
        heldout_characters=int(every.characters[heldout].sum()),
    )


class _Documents:
    """The cleaned documents of all shards, numbered in order.

    Attributes:
        digests: [n, 2] two integers that identify the text.
        characters: [n].
        kept: [n] whether no step has dropped the document so far.
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
        """The spans to cut out of each document; drops documents that lose everything."""
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
            if not left.strip():
                self.kept[number] = False
                dropped += 1
        self._record("repeated passages", dropped, characters, changed=len(cuts) - dropped)
        return cuts

    def _record(self, step: str, dropped: int, characters: int, **more: int) -> None:
        kept = int(self.kept.sum())
        counts = {"kept": kept, "dropped": dropped, "characters": characters}
        self.steps.append({"step": step, **counts, **more})

    def repeats(self) -> NDArray[np.float64]:
        """[n] how often each document is packed by the weight of its source, a whole number.

        The digest decides which documents get one more for the fraction of a weight.
        """
        weights = np.repeat([shard.source.weight for shard in self._shards], self._sizes)
        whole: NDArray[np.float64] = np.floor(weights)
        return whole + (self.digests[:, 1] / 2.0**64 < weights % 1.0)

    def by_shard(
        self, repeats: NDArray[np.float64], heldout: Mask, cuts: Cuts
    ) -> Iterator[ShardSelection]:
        """The same selection for each shard, whose documents are numbered from 0."""
        start = 0
        for size in self._sizes:
            end = start + size
            own = {number - start: spans for number, spans in cuts.items() if start <= number < end}
            yield ShardSelection(repeats[start:end].astype(np.uint16), heldout[start:end], own)
            start = end


def exact_duplicates(digests: NDArray[np.uint64]) -> Mask:
    """True for every digest that has occurred before; digests [n, 2]."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones stay in their order
    ranked = digests[order]
    marks = np.zeros(len(digests), bool)
    marks[order[1:]] = (ranked[1:] == ranked[:-1]).all(axis=1)
    return marks


def heldout_threshold(
    ranks: NDArray[np.float64], characters: NDArray[np.int64], data: DataConfig
) -> float:
    """The rank in [0, 1) below which documents are held out.

    Documents are taken in the order of their ranks until `data.heldout_fraction` is reached, and
    `data.heldout_rows` if that takes no more than 5 % of the characters; at least one document.

    Args:
        ranks: [n] of the documents that are kept.
        characters: [n] of the documents that are kept.

    Raises:
        InputError: there is no document, or none would be left to train on.
    """
    if not len(ranks):
        raise InputError("the data holds no text: no document is left after cleaning")
    total = int(characters.sum())
    for_rows = data.heldout_rows * data.row_length * CHARACTERS_A_TOKEN
    target = max(data.heldout_fraction * total, min(for_rows, LARGEST_HELDOUT * total))
    order = np.argsort(ranks, kind="stable")
    last = int(np.searchsorted(np.cumsum(characters[order]), target))
    threshold = math.nextafter(float(ranks[order[min(last, len(order) - 1)]]), 1.0)
    if not np.any(ranks >= threshold):
        raise InputError(
            f"{len(ranks)} document(s) are too few to train on some and hold out others; if a .txt "
            "file is meant to hold many, set data.documents=line"
        )
    return threshold
