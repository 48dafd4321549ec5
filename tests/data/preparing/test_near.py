"""Near-duplicates: banding, MinHash, linking."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crammed.data.preparing.cleaning import near
from crammed.data.preparing.cleaning.near import (
    FEWEST_USED,
    PERMUTATIONS,
    band_hashes,
    banding,
    links_of,
    middle,
    repeats_of,
)
from crammed.data.preparing.cleaning.words import words_of
from support.text import documents

pytest.importorskip("rensa")


def repeats(texts: list[str], jaccard: float = 0.8) -> list[bool]:
    return near_duplicates([band_hashes(texts, jaccard)])


def near_duplicates(shards: list[NDArray[np.uint64]]) -> list[bool]:
    """Whether each document repeats an earlier one; shards [documents, bands] of hashes."""
    bands = np.concatenate(shards)
    numbers = np.arange(len(bands))
    dropped = repeats_of(links_of(hashes, numbers) for hashes in bands.T)
    return [number in dropped for number in numbers]


def jaccard_index(one: str, other: str) -> float:
    sets = [
        {tuple(w[n : n + 5]) for n in range(len(w) - 4)} for w in (words_of(one), words_of(other))
    ]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("jaccard", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_the_middle_of_the_curve_is_at_the_configured_index(jaccard: float) -> None:
    bands, rows = banding(jaccard)
    assert FEWEST_USED <= bands * rows <= PERMUTATIONS
    assert middle(bands, rows) == pytest.approx(jaccard, abs=0.04)


def test_the_middle_is_where_half_of_the_pairs_share_a_band() -> None:
    assert 1 - (1 - middle(14, 8) ** 8) ** 14 == pytest.approx(0.5)


def test_pairs_are_found_as_often_as_the_curve_says() -> None:
    """Nearly all pairs well above the index are linked, and nearly none well below it."""
    draw = np.random.default_rng(0)
    base = [[f"w{n}" for n in draw.integers(1 << 30, size=300)] for _ in range(120)]

    def linked(changes: int) -> tuple[float, float]:
        found, indices = 0, []
        for split in base:
            changed = split.copy()
            for place in range(changes):
                changed[(place * 300) // changes + 3] = "changed"
            one, other = " ".join(split), " ".join(changed)
            indices.append(jaccard_index(one, other))
            found += repeats([one, other], 0.7)[1]
        return found / len(base), float(np.mean(indices))

    for changes in (2, 8, 10, 12, 22):
        share, index = linked(changes)
        bands, rows = banding(0.7)
        assert share == pytest.approx(1 - (1 - index**rows) ** bands, abs=0.15)


def test_case_and_punctuation_do_not_count() -> None:
    text = " ".join(documents(5))
    assert repeats([text, text.upper().replace(".", " ;")]) == [False, True]


def test_words_do_not_run_across_documents() -> None:
    texts = ["one two three four five six", "seven eight nine ten eleven twelve"]
    elements = band_hashes([" ".join(texts), *texts], 0.8)
    apart = [band_hashes([text], 0.8)[0] for text in (" ".join(texts), *texts)]
    assert np.array_equal(elements, np.stack(apart))


@given(st.lists(st.text("ab .", max_size=6), min_size=1, max_size=12))
def test_short_documents_match_only_when_they_are_equal(texts: list[str]) -> None:
    assert repeats(texts) == [text in texts[:n] for n, text in enumerate(texts)]


def test_a_short_document_is_not_part_of_a_longer_one() -> None:
    assert repeats(["a", "a a a a a", "a a a a a a a"]) == [False, False, True]


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=6), min_size=1, max_size=4))
def test_near_duplicates_equals_its_reference(shards: list[list[tuple[int, ...]]]) -> None:
    arrays = [np.array(shard, np.uint64).reshape(-1, 3) for shard in shards]
    flat = [bands for shard in shards for bands in shard]
    group = list(range(len(flat)))
    for _ in flat:
        for n, one in enumerate(flat):
            for m, other in enumerate(flat):
                if any(a == b for a, b in zip(one, other, strict=True)):
                    group[n] = group[m] = min(group[n], group[m])
    expected = [group[n] != n for n in range(len(flat))]
    assert near_duplicates(arrays) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_MOST_WAITING", 0)  # as if there were a great many links
        assert near_duplicates(arrays) == expected


def test_hashes_are_the_same_in_every_process() -> None:
    code = (
        "from crammed.data.preparing.cleaning.near import band_hashes; "
        "print(band_hashes(['short', 'the quick brown fox jumps over the lazy dog'], 0.8).tolist())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = band_hashes(["short", "the quick brown fox jumps over the lazy dog"], 0.8).tolist()
    assert other.stdout == f"{here}\n"
