"""Near-duplicates by MinHash and banding (Broder 1997; Lee et al. 2022, section 4.2).

A document is the set of its word 5-grams. Two documents whose sets have Jaccard index s agree in
each MinHash with probability s. At least one of b bands of r hashes then agrees with probability
1 - (1 - s^r)^b, an S-shaped curve that is steep around its middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.data.preparing.cleaning.words import Hashes, word_hashes
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.extras import import_extra

NGRAM = 5
"""Words in one element of a document's set."""
PERMUTATIONS = 128
"""MinHashes of one document."""
FEWEST_USED = 112
"""The bands may leave out the others, to come closer to the configured index."""

_SEED = 1
_MOST_WAITING = 8_000_000
"""Numbers of linked documents to gather before those that say nothing new are left out."""

_Numbers = NDArray[np.int64]


def middle(bands: int, rows: int) -> float:
    """The Jaccard index at which two documents share a band with probability one half."""
    return float((1 - 0.5 ** (1 / bands)) ** (1 / rows))


def banding(jaccard: float) -> tuple[int, int]:
    """The number of bands, and of MinHashes in each, that bring `middle` closest to `jaccard`."""
    choices = [
        (bands, rows)
        for bands in range(1, PERMUTATIONS + 1)
        for rows in range(-(-FEWEST_USED // bands), PERMUTATIONS // bands + 1)
    ]
    return min(choices, key=lambda choice: abs(middle(*choice) - jaccard))


def band_hashes(texts: Sequence[str], jaccard: float) -> Hashes:
    """Hashes of documents, [len(texts), bands], of which near-duplicates share one.

    They are the same in every process. A document of fewer than 5 words is a set of one element:
    its text in lower case. Takes about 40 bytes of memory for each word of `texts`.

    Args:
        jaccard: index, 0 to 1, from which documents are likely to share a hash.

    Raises:
        InputError: the library is not installed.
    """
    bands, rows = banding(jaccard)
    if not texts:
        return np.empty((0, bands), np.uint64)
    elements, ends = _elements(texts)
    minhashes = minhash_library().digest_matrix_from_flat_token_hashes(
        elements, np.concatenate(([0], ends)).astype(np.uint64), PERMUTATIONS, _SEED
    )
    used = np.asarray(minhashes.to_rows(), np.uint64)[:, : bands * rows]
    return _folded(np.moveaxis(used.reshape(len(texts), bands, rows), 2, 0))


def minhash_library() -> Any:
    """The class that computes MinHashes.

    Raises:
        InputError: it is missing, or SciPy, which later joins what it finds; names the extra.
    """
    import_extra("scipy", "dedup", "data.clean.near")
    return import_extra("rensa", "dedup", "data.clean.near").RMinHash


def _wide_hashes(words: Iterable[str]) -> Hashes:
    """A hash of 64 bits of each word, the same in every process."""
    digests = [blake2b(word.encode(), digest_size=8).digest() for word in words]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


_WORD_HASHES = word_hashes(_wide_hashes, cut_ascii=False)


def _elements(texts: Sequence[str]) -> tuple[Hashes, _Numbers]:
    """Hashes of the word 5-grams of all documents, joined, and where each document's end."""
    words, ends = _WORD_HASHES(cut_into_chunks(texts))
    by_document = np.split(words, ends[:-1])
    for number, own in enumerate(by_document):
        if len(own) < NGRAM:  # one element, unlike any other
            by_document[number] = _wide_hashes([texts[number].lower(), *[""] * (NGRAM - 1)])
    word_ends = np.cumsum([len(hashes) for hashes in by_document])
    flat = np.concatenate(by_document)
    elements = _folded([flat[n : len(flat) - NGRAM + 1 + n] for n in range(NGRAM)])
    within = np.ones(len(elements), np.bool_)
    for n in range(1, NGRAM):
        within[word_ends[:-1] - n] = False  # would begin in one document and end in the next
    return elements[within], word_ends - (NGRAM - 1) * np.arange(1, len(word_ends) + 1)


def _folded(parts: Iterable[Hashes]) -> Hashes:
    """Several hashes combined in order, mixed as in splitmix64 (Steele et al. 2014)."""
    state: Any = np.uint64(0x9E3779B97F4A7C15)
    for part in parts:
        state = part ^ state
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return np.asarray(state, np.uint64)


def links_of(hashes: Hashes, numbers: _Numbers) -> _Numbers:
    """Pairs of documents that link all documents with the same hash, [2, pairs].

    Args:
        hashes: [n] one band's hash of each document.
        numbers: [n] the documents' numbers, ascending.
    """
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    same = np.flatnonzero(in_order[1:] == in_order[:-1])
    return np.stack((numbers[order[same]], numbers[order[same + 1]]))


def repeats_of(links: Iterable[_Numbers]) -> _Numbers:
    """The numbers of the documents to drop, ascending, given links from `links_of`.

    Of all documents that are linked, directly or through others, only the first is kept. Takes
    about 100 bytes of memory for each document that is linked to an earlier one.
    """
    forest = np.empty((2, 0), np.int64)
    waiting: list[_Numbers] = []
    for some in links:
        waiting.append(some)
        if sum(map(np.size, waiting)) > forest.size + _MOST_WAITING:
            forest = _forest(np.concatenate([forest, *waiting], axis=1))
            waiting.clear()
    return np.sort(_forest(np.concatenate([forest, *waiting], axis=1))[1])


def _forest(links: _Numbers) -> _Numbers:
    """As many links as are needed: to the first of the documents that are linked with another."""
    from scipy.sparse import coo_array  # slower to import than all that workers need
    from scipy.sparse.csgraph import connected_components

    linked, places = np.unique(links, return_inverse=True)
    one, other = places.reshape(2, -1)
    shape = (len(linked), len(linked))
    graph = coo_array((np.ones(len(one), np.bool_), (one, other)), shape=shape)
    _, groups = connected_components(graph, directed=False)
    firsts = np.unique(groups, return_index=True)[1]
    later = np.ones(len(linked), np.bool_)
    later[firsts] = False
    return np.stack((linked[firsts][groups[later]], linked[later]))
