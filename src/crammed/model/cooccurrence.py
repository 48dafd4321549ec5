"""Initial embeddings from the co-occurrence of neighbouring tokens.

The vectors are the leading left singular vectors of a matrix, times the roots of the singular
values. The matrix has a row for each token and a column for each context, which is a frequent token
at some distance. Its entries are positive pointwise mutual information, which measures how much
more often the two meet than by chance (Levy and Goldberg 2014).

Shapes: R rows of S tokens, V vocabulary, C contexts at each of N distances, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crammed.keys import key

DISTANCES = (-2, -1, 1, 2)
MOST_CONTEXTS = 1024
"""At most this many tokens, the most frequent ones, serve as contexts."""
_MOST_PAIRS = 1 << 27
"""At most this many pairs of a token and a context, each of which takes 24 bytes: a vocabulary of
more than 131,072 tokens has fewer contexts."""
CONTEXT_POWER = 0.75
"""Exponent of the contexts' shares; gives rare ones less weight (Levy et al. 2015, section 3.2)."""
SPARE = 16
"""Directions that the factorisation keeps beyond the requested ones."""
POWER_STEPS = 2
"""Products with the matrix and its transpose before its range is taken (Halko et al. 2011)."""
_TOKENS_AT_A_TIME = 1 << 22
"""Tokens counted at once, to bound memory."""


def _most_contexts(vocab_size: int) -> int:
    return min(MOST_CONTEXTS, vocab_size, _MOST_PAIRS // vocab_size)


def neighbour_counts(rows: NDArray[np.int64], vocab_size: int) -> NDArray[np.float32]:
    """How often each token occurs with each context at each distance, [V, N, C].

    Args:
        rows: [R, S] token ids.
    """
    occurrences = np.bincount(rows.ravel(), minlength=vocab_size)
    contexts = np.argsort(-occurrences, kind="stable")[: _most_contexts(vocab_size)]
    size = len(contexts) + 1  # the last column stands for all other tokens
    context = np.full(vocab_size, size - 1)
    context[contexts] = np.arange(size - 1)
    counts = np.zeros((vocab_size, len(DISTANCES), size - 1), np.float32)
    at_a_time = max(1, _TOKENS_AT_A_TIME // rows.shape[1])
    for first in range(0, len(rows), at_a_time):
        ids = rows[first : first + at_a_time]
        near = context[ids]
        for place, distance in enumerate(DISTANCES):
            before, after = slice(None, -abs(distance)), slice(abs(distance), None)
            here, there = (before, after) if distance > 0 else (after, before)
            cells = ids[:, here] * size + near[:, there]
            found = np.bincount(cells.ravel(), minlength=vocab_size * size)
            counts[:, place] += found.reshape(vocab_size, size)[:, :-1]
    return counts


def positive_information(counts: Tensor) -> Tensor:
    """Positive pointwise mutual information of counts [V, N, C], for each distance separately.

    The counts are overwritten, because they are large; the result is [V, N * C].
    """
    expected = counts.sum(0, keepdim=True).pow(CONTEXT_POWER)
    expected /= expected.sum(2, keepdim=True).clamp(min=1.0)
    expected[expected == 0.0] = 1.0  # contexts that occur with no token
    counts /= counts.sum(2, keepdim=True).clamp(min=1.0)
    counts /= expected
    return counts.log_().clamp_(min=0.0).flatten(1)


def leading_vectors(matrix: Tensor, width: int, draw: torch.Generator) -> Tensor:
    """Leading left singular vectors times the roots of the singular values, [V, at most width].

    A randomised singular value decomposition (Halko et al. 2011, sections 4.5 and 5.1). A matrix
    [V, N * C] with a side below `width` has fewer vectors.
    """
    kept = min(width + SPARE, *matrix.shape)
    found = matrix @ torch.randn(matrix.shape[1], kept, generator=draw).to(matrix)
    for _ in range(POWER_STEPS):
        found = matrix @ (matrix.T @ torch.linalg.qr(found).Q)
    basis = torch.linalg.qr(found).Q
    left, values, _ = torch.linalg.svd(torch.linalg.qr(matrix.T @ basis).R.T)
    vectors: Tensor = (basis @ left[:, :width]) * values[:width].sqrt()
    return vectors


def factorisation_flops(vocab_size: int, width: int) -> float:
    """FLOPs of the products with the matrix in `leading_vectors`."""
    contexts = len(DISTANCES) * _most_contexts(vocab_size)
    kept = min(width + SPARE, vocab_size, contexts)
    return 2.0 * vocab_size * contexts * kept * (2 + 2 * POWER_STEPS)


@torch.no_grad()
def begin_with_neighbours(table: Tensor, rows: NDArray[np.int64], std: float, seed: int) -> None:
    """Set embeddings from the co-occurrence of tokens in some rows.

    A random rotation makes all dimensions statistically alike. Tokens without any context in the
    rows keep their vectors.

    Args:
        table: [V, D]; overwritten.
        rows: [R, S] token ids.
        std: root mean square of the new vectors.
    """
    width = table.shape[1]
    # Not every device type supports the factorisations.
    device = table.device if table.device.type == "cuda" else torch.device("cpu")
    counts = torch.from_numpy(neighbour_counts(rows, len(table))).to(device)
    matrix = positive_information(counts)
    known = matrix.any(1)
    if not known.any():
        return
    draw = torch.Generator().manual_seed(key(seed, "cooccurrence"))
    vectors = leading_vectors(matrix, width, draw)[known]
    rotation = torch.linalg.qr(torch.randn(width, width, generator=draw)).Q.to(device)
    vectors = vectors @ rotation[: vectors.shape[1]]
    vectors *= std / vectors.square().mean().sqrt()
    table[known.to(table.device)] = vectors.to(table)
