"""Embeddings that begin with what stands together, against plain loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crammed.model import cooccurrence
from crammed.model.cooccurrence import (
    CONTEXT_POWER,
    DISTANCES,
    begin_with_neighbours,
    factorisation_flops,
    leading_vectors,
    neighbour_counts,
    positive_information,
)

Rows = NDArray[np.int64]


def some_rows(count: int, length: int, vocab_size: int, seed: int = 0) -> Rows:
    """Tokens of which some are frequent, and many follow the one that follows them in numbers."""
    draw = np.random.default_rng(seed)
    rows = draw.geometric(0.15, (count, length)) % vocab_size
    follow = draw.random((count, length - 1)) < 0.5
    rows[:, 1:][follow] = (rows[:, :-1][follow] + 1) % vocab_size
    return rows


def slow_counts(rows: Rows, vocab_size: int, most: int) -> NDArray[np.float64]:
    occurrences = Counter(rows.ravel().tolist())
    contexts = sorted(range(vocab_size), key=lambda token: (-occurrences[token], token))[:most]
    counts = np.zeros((vocab_size, len(DISTANCES), len(contexts)))
    for row in rows.tolist():
        for place, token in enumerate(row):
            for n, distance in enumerate(DISTANCES):
                if 0 <= place + distance < len(row) and row[place + distance] in contexts:
                    counts[token, n, contexts.index(row[place + distance])] += 1
    return counts


def slow_information(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    vocab_size, distances, contexts = counts.shape
    found = np.zeros(counts.shape)
    for n in range(distances):
        smoothed = [counts[:, n, c].sum() ** CONTEXT_POWER for c in range(contexts)]
        for token in range(vocab_size):
            for c in range(contexts):
                if together := counts[token, n, c]:
                    given = together / counts[token, n].sum()
                    found[token, n, c] = max(0.0, np.log(given / (smoothed[c] / sum(smoothed))))
    return found.reshape(vocab_size, -1)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 9),
    st.integers(2, 12),
    st.integers(3, 30),
    st.sampled_from([4, 1024]),
    st.sampled_from([90, 1 << 27]),
    st.sampled_from([5, 1 << 22]),
)
def test_counts_and_information_are_those_of_plain_loops(
    count: int, length: int, vocab_size: int, contexts: int, pairs: int, at_a_time: int
) -> None:
    rows = some_rows(count, length, vocab_size, seed=count * length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooccurrence, "MOST_CONTEXTS", contexts)
        patch.setattr(cooccurrence, "_MOST_PAIRS", pairs)
        patch.setattr(cooccurrence, "_TOKENS_AT_A_TIME", at_a_time)
        counts = neighbour_counts(rows, vocab_size)
    expected = slow_counts(rows, vocab_size, min(contexts, pairs // vocab_size))
    np.testing.assert_array_equal(counts, expected)
    information = positive_information(torch.from_numpy(counts)).numpy()
    np.testing.assert_allclose(information, slow_information(expected), rtol=1e-5, atol=1e-5)


def check_vectors(matrix: torch.Tensor, width: int, tolerance: float) -> None:
    left, values, _ = np.linalg.svd(matrix.numpy(), full_matrices=False)
    found = leading_vectors(matrix, width, torch.Generator().manual_seed(1)).numpy()
    expected = left[:, :width] * values[:width] ** 0.5
    assert found.shape == expected.shape
    # Vectors may change their signs, and what they span together does not.
    scale = tolerance * values[0]
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=0.0, atol=scale)
    np.testing.assert_allclose((found**2).sum(0), values[:width], rtol=0.0, atol=scale)


def test_vectors_are_those_of_the_whole_decomposition() -> None:
    counts = torch.from_numpy(neighbour_counts(some_rows(200, 16, 25), 25)).double()
    check_vectors(positive_information(counts), 12, 1e-10)  # with more directions than it has
    draw = torch.Generator().manual_seed(3)
    one, other = (
        torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64)).Q
        for n in (200, 300)
    )
    check_vectors(one @ torch.diag(0.8 ** torch.arange(200).double()) @ other[:200], 20, 1e-3)


def test_a_table_begins_with_them_rotated_and_scaled() -> None:
    rows = some_rows(300, 16, 25)
    rows[rows == 7] = 8
    before = torch.randn(25, 12, generator=torch.Generator().manual_seed(2))
    table = before.clone()
    begin_with_neighbours(table, rows, 0.02, seed=5)
    assert torch.equal(table[7], before[7])  # a token that does not occur
    others = torch.arange(25) != 7
    assert table[others].square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-4)
    shares = table[others].square().mean(0) / 0.02**2
    assert shares.max() < 3.5  # the first dimension would otherwise hold most
    matrix = positive_information(torch.from_numpy(neighbour_counts(rows, 25)))
    plain = leading_vectors(matrix, 12, torch.Generator())[others]
    cosines = torch.nn.functional.cosine_similarity
    for one in range(0, 24, 5):  # rotating keeps angles
        found = cosines(table[others][one], table[others], dim=-1)
        torch.testing.assert_close(found, cosines(plain[one], plain, dim=-1), atol=1e-3, rtol=0.0)
    again = before.clone()
    begin_with_neighbours(again, rows, 0.02, seed=5)
    assert torch.equal(again, table)
    begin_with_neighbours(again, rows, 0.02, seed=6)
    assert not torch.allclose(again, table, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "width"), [((3, 4), 64), ((1, 2), 8), ((2, 1), 8), ((0, 16), 8), ((40, 16), 100)]
)
def test_little_text_is_enough(shape: tuple[int, int], width: int) -> None:
    """Fewer tokens than contexts, fewer tokens than dimensions, none that stand together."""
    rows = some_rows(*shape, 30) if shape[1] > 1 else np.zeros(shape, np.int64)
    before = torch.randn(30, width, generator=torch.Generator().manual_seed(2))
    table = before.clone()
    begin_with_neighbours(table, rows, 0.02, seed=5)
    assert table.isfinite().all()
    untouched = (table == before).all(1)
    there = np.bincount(rows.ravel(), minlength=30) > 0
    assert untouched[~torch.from_numpy(there)].all()
    if shape[0] * shape[1] > 10:
        assert (~untouched).sum() > 1
    if shape[1] == 1:
        assert untouched.all()


def test_products_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    matrix = torch.rand(60, len(DISTANCES) * 60)
    with FlopCounterMode(display=False) as counter:
        leading_vectors(matrix, 8, torch.Generator())
    extra = 2 * 60 * 24 * 8  # the vectors in the basis
    assert counter.get_total_flops() - extra == factorisation_flops(60, 8)


def test_a_vocabulary_beyond_131_072_has_fewer_contexts() -> None:
    """So that its matrix is no larger."""
    largest = factorisation_flops(131_072, 768)
    assert largest == 2 * 131_072 * (4 * 1024) * (768 + 16) * 6
    assert factorisation_flops(2 * 131_072, 768) == largest
