"""Hashes are ruled out quickly, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from crammed.data.preparing.cleaning import hashing
from crammed.data.preparing.cleaning.hashing import Screen


@pytest.mark.parametrize(("many", "passing"), [(29, 0.07), (16, 0.25)])
def test_a_screen_takes_little_more_than_its_table(
    monkeypatch: pytest.MonkeyPatch, many: int, passing: float
) -> None:
    monkeypatch.setattr(hashing, "_MANY_BITS", many)
    draw = np.random.default_rng(0)
    hashes, others = (draw.integers(1 << 64, size=1_000_000, dtype=np.uint64) for _ in range(2))
    tracemalloc.start()
    try:
        screen = Screen(hashes)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert screen(hashes).all()
    assert screen(others).mean() < passing


def test_a_screen_of_no_hashes_rules_out_all() -> None:
    none = np.empty(0, np.uint64)
    assert not Screen(none)(np.arange(3, dtype=np.uint64)).any()
    assert Screen(none)(none).tolist() == []
