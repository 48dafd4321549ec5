"""Sources mixed by share or by temperature: how often the documents of each are packed.

Each document is packed at least once, so mixing loses no text; a source that is to be a larger part
of the whole than its text is gets a weight above 1, up to `data.mix.most_readings`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crammed.config import MixConfig
from crammed.data.preparing.read.cleaned import CleanedText
from crammed.data.preparing.read.source import Source
from crammed.data.preparing.select.selection import Selection
from crammed.data.preparing.select.selection_job import weighted
from crammed.errors import InputError
from crammed.machine.engine import Engine
from crammed.quantity import times


@dataclass(frozen=True)
class Mixed:
    """A selection in which every document is packed as often as its source's weight says.

    Attributes:
        weights: of each source, by name.
        description: a line about each source whose weight follows from its size.
    """

    selection: Selection
    weights: Mapping[str, float]
    description: tuple[str, ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether some documents are packed more than once."""
        return any(weight > 1.0 for weight in self.weights.values())


def mix_sources(
    text: CleanedText,
    selection: Selection,
    characters: Sequence[int],
    mix: MixConfig,
    engine: Engine,
) -> Mixed:
    """Set the weights of the sources by their sizes, unless they have weights of their own.

    Args:
        characters: of the documents to pack from each shard, each counted once.

    Raises:
        InputError: no text is left of a source that is to have a share.
    """
    sources = text.sources
    if not _is_mixed(sources, mix):
        return Mixed(selection, {source.name: source.weight for source in sources})
    sizes = _sizes(text, characters)
    weights = mixed_weights(sources, sizes, mix)
    shards = [(shard.slices, weights[shard.source.name]) for shard in text.shards]
    packed = weighted(engine, shards)
    repeats = np.where(selection.repeats > 0, packed, 0).astype(np.uint16)
    words = tuple(_description(sources, sizes, weights, mix.most_readings))
    return Mixed(replace(selection, repeats=repeats), weights, words)


def expected_growth(text: CleanedText, selection: Selection, mix: MixConfig) -> float:
    """About how many times as much text there will be once its sources are mixed.

    Raises:
        InputError: no text is left of a source that is to have a share.
    """
    if not _is_mixed(text.sources, mix):
        return 1.0
    sizes = _sizes(text, selection.sizes)
    weights = mixed_weights(text.sources, sizes, mix)
    return sum(size * weights[name] for name, size in sizes.items()) / sizes.total()


def _is_mixed(sources: Sequence[Source], mix: MixConfig) -> bool:
    return mix.temperature is not None or any(source.share is not None for source in sources)


def _sizes(text: CleanedText, characters: Sequence[int]) -> Counter[str]:
    """The characters of each source that has some, by name, given those of each shard."""
    sizes = Counter[str]()
    for shard, own in zip(text.shards, characters, strict=True):
        sizes[shard.source.name] += own
    return sizes


def mixed_weights(
    sources: Sequence[Source], sizes: Mapping[str, int], mix: MixConfig
) -> dict[str, float]:
    """How often to pack each document of each source, by name: from 1 to `mix.most_readings`.

    Weights are in proportion to a source's share divided by its size, and the smallest is 1. With a
    temperature T, shares are in proportion to size ** (1 / T).

    Args:
        sizes: characters to train on of each source, each counted once; none if there are none.

    Raises:
        InputError: no text is left of a source that is to have a share.
    """
    ratios = {}
    for source in sources:
        if size := sizes.get(source.name, 0):
            by_size = size ** (1.0 / (mix.temperature or 1.0))
            ratios[source.name] = (by_size if source.share is None else source.share) / size
        elif source.share is not None:
            raise InputError(
                f"{source.name} is to be a share of the text, but none of it is left to train on: "
                "leave the source out, or add text to it"
            )
    least = min(ratios.values())
    return {
        source.name: min(ratios.get(source.name, least) / least, mix.most_readings)
        for source in sources
    }


def _description(
    sources: Sequence[Source], sizes: Mapping[str, int], weights: Mapping[str, float], most: float
) -> Iterator[str]:
    packed = {name: sizes[name] * weight for name, weight in weights.items()}
    asked = sum(source.share or 0.0 for source in sources)
    for source in sources:
        share = packed[source.name] / sum(packed.values())
        words = f"{source.name}  {100 * share:.1f} % of the text, each document packed "
        words += times(weights[source.name])
        wanted = (source.share or 0.0) / asked if asked else 0.0
        if weights[source.name] == most and share < wanted - 0.0005:
            words += f"; {100 * wanted:.1f} % would take more than data.mix.most_readings={most:g}"
        yield words
