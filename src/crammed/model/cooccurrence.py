"""Embeddings to begin with, from which tokens stand beside which.

The vectors are the leading left singular vectors of a matrix, times the roots of the singular
values. The matrix has a row for each token and a column for each context, a frequent token at some
distance, and holds how much more often the two meet than by chance: their pointwise mutual
information, where that is positive (Levy and Goldberg 2014).

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
"""How many tokens are contexts, the most frequent ones."""
CONTEXT_POWER = 0.75
"""Of the contexts' shares, so that rare ones tell less (Levy et al. 2015, section 3.2)."""
SPARE = 16
"""Directions that the factorisation keeps beyond those that it is asked for."""
POWER_STEPS = 2
"""Products with the matrix and its transpose before its range is taken (Halko et al. 2011)."""
_TOKENS_AT_A_TIME = 1 << 22
"""How many are counted at once, so that memory stays bounded."""


def neighbour_counts(rows: NDArray[np.int64], vocab_size: int) -> NDArray[np.float32]:
    """How often each token has each context at each distance, [V, N, C].

    Args:
        rows: [R, S] token ids.
    """
    occurrences = np.bincount(rows.ravel(), minlength=vocab_size)
    contexts = np.argsort(-occurrences, kind="stable")[:MOST_CONTEXTS]
    size = len(contexts) + 1  # the last one stands for all other tokens
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
    """Positive pointwise mutual information of counts [V, N, C], each distance by itself.

    Counts are overwritten, for they are large; the result is [V, N * C].
    """
    expected = counts.sum(0, keepdim=True).pow(CONTEXT_POWER)
    expected /= expected.sum(2, keepdim=True).clamp(min=1.0)
    expected[expected == 0.0] = 1.0  # of contexts that no token has
    counts /= counts.sum(2, keepdim=True).clamp(min=1.0)
    counts /= expected
    return counts.log_().clamp_(min=0.0).flatten(1)


def leading_vectors(matrix: Tensor, width: int, draw: torch.Generator) -> Tensor:
    """Leading left singular vectors times the roots of the singular values, [V, at most width].

    A randomised singular value decomposition (Halko et al. 2011, sections 4.5 and 5.1). There are
    fewer vectors if the matrix [V, N * C] is smaller.
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
    contexts = len(DISTANCES) * min(MOST_CONTEXTS, vocab_size)
    kept = min(width + SPARE, vocab_size, contexts)
    return 2.0 * vocab_size * contexts * kept * (2 + 2 * POWER_STEPS)


@torch.no_grad()
def begin_with_neighbours(table: Tensor, rows: NDArray[np.int64], std: float, seed: int) -> None:
    """Let embeddings begin with the company that tokens keep in some rows.

    A random rotation makes all dimensions alike. Tokens that have no context in the rows keep the
    vectors that they have.

    Args:
        table: [V, D]; overwritten.
        rows: [R, S] token ids.
        std: root mean square of the new vectors.
    """
    width = table.shape[1]
    # Not every kind of device can factorise.
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
