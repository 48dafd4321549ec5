"""Which documents stay, which are held out, how often each is packed: what needs all of them.

The driver holds some 60 bytes a document here, and with near-duplicates 8 more a band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.cleaning import near, substring
from crammed.data.shards import SAMPLES, Selection
from crammed.errors import InputError

CHARACTERS_A_TOKEN = 5.0
"""More than any English tokenizer packs into a token: makes the held-out part large enough."""
LARGEST_HELDOUT = 0.05
"""The held-out part grows no larger than this share of the characters."""

Mask = NDArray[np.bool_]


@dataclass
class Choice:
    """A selection for every shard, and what the steps dropped on the way to it."""

    selections: list[Selection]
    steps: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    heldout_documents: int = 0
    heldout_characters: int = 0


def choose(
    paths: Sequence[Path], sources: Sequence[str], weights: Sequence[float], data: DataConfig
) -> Choice:
    """Drop exact and near-duplicates, set documents aside, and set how often each is packed.

    Args:
        paths: the cleaned shards, in order.
        sources: name of each shard's source.
        weights: weight of each shard's source.

    Raises:
        InputError: too few documents to train on some and hold out others.
    """
    found = [shards.digests(path) for path in paths]
    sizes = [len(digests) for digests, _ in found]
    digests = np.concatenate([each for each, _ in found])
    characters = np.concatenate([each for _, each in found])
    choice = Choice([])
    kept = np.ones(len(digests), bool)

    def drop(step: str, marks: Mask) -> None:
        gone = np.flatnonzero(kept & marks)
        kept[gone] = False
        lost = int(characters[gone].sum())
        choice.steps.append(
            {"step": step, "kept": int(kept.sum()), "dropped": len(gone), "characters": lost}
        )
        begins = np.cumsum(sizes) - sizes
        for path, source, begin, size in zip(paths, sources, begins, sizes, strict=True):
            own = gone[(gone >= begin) & (gone < begin + size)][:SAMPLES] - begin
            texts = shards.texts(path, own.tolist())
            choice.samples.extend(shards.sample(step, source, text) for text in texts)

    if data.clean.exact:
        drop("exact duplicates", repeated(digests))
    if data.clean.near is not None:
        marks = np.concatenate(near.near_duplicates([shards.bands(path) for path in paths]))
        drop("near-duplicates", marks)
    cuts = {}
    if data.clean.substring is not None:
        cuts = _cuts(choice, paths, sizes, kept, data.clean.substring)

    # The digest decides, so copies of a document stand on the same side.
    ranks = digests[:, 0] / 2.0**64
    heldout = kept & (ranks < heldout_cut(ranks[kept], characters[kept], data))
    choice.heldout_documents = int(heldout.sum())
    choice.heldout_characters = int(characters[heldout].sum())
    repeats = np.repeat(np.asarray(weights), sizes)
    repeats = np.floor(repeats) + (digests[:, 1] / 2.0**64 < repeats % 1.0)
    repeats[~kept | heldout] = 0

    start = 0
    for size in sizes:
        end = start + size
        own = {number - start: spans for number, spans in cuts.items() if start <= number < end}
        choice.selections.append(
            Selection(repeats[start:end].astype(np.uint16), heldout[start:end], own)
        )
        start = end
    return choice


def repeated(digests: NDArray[np.uint64]) -> Mask:
    """True where the same digest stands earlier; digests [n, 2]."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones stay in their order
    ranked = digests[order]
    marks = np.zeros(len(digests), bool)
    marks[order[1:]] = (ranked[1:] == ranked[:-1]).all(axis=1)
    return marks


def _cuts(
    choice: Choice, paths: Sequence[Path], sizes: Sequence[int], kept: Mask, shortest: int
) -> dict[int, list[tuple[int, int]]]:
    """Byte spans to cut out, by document; one that loses everything is dropped."""
    numbers = np.flatnonzero(kept)
    texts = [text.encode() for path in paths for text in shards.texts(path)]
    spans = substring.repeated_spans([texts[number] for number in numbers], shortest)
    cuts: dict[int, list[tuple[int, int]]] = {}
    gone = lost = 0
    for number, own in zip(numbers.tolist(), spans, strict=True):
        if not own:
            continue
        cuts[number] = own
        left = shards.cut(texts[number].decode(), own)
        lost += len(texts[number].decode()) - len(left)
        if not left.strip():
            kept[number] = False
            gone += 1
    choice.steps.append(
        {
            "step": "repeated passages",
            "kept": int(kept.sum()),
            "dropped": gone,
            "characters": lost,
            "changed": len(cuts) - gone,
        }
    )
    return cuts


def heldout_cut(
    ranks: NDArray[np.float64], characters: NDArray[np.int64], data: DataConfig
) -> float:
    """Documents whose rank in [0, 1) is below this are held out.

    Documents are taken in the order of their rank until the fraction is reached, and the number
    of rows if that needs no more than 5 % of the characters; one document at least.
    """
    if not len(ranks):
        raise InputError("the data holds no text: no document is left after cleaning")
    total = int(characters.sum())
    wanted = data.heldout_rows * data.row_length * CHARACTERS_A_TOKEN
    target = max(data.heldout_fraction * total, min(wanted, LARGEST_HELDOUT * total))
    order = np.argsort(ranks, kind="stable")
    last = int(np.searchsorted(np.cumsum(characters[order]), target))
    cut = math.nextafter(float(ranks[order[min(last, len(order) - 1)]]), 1.0)
    if not np.any(ranks >= cut):
        raise InputError(
            f"{len(ranks)} document(s) are too few to train on some and hold out others; if a .txt "
            "file is meant to hold many, set data.documents=line"
        )
    return cut
