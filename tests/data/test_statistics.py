from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.statistics import Statistics, labelled_lengths

DOCUMENTS = st.lists(
    st.tuples(st.integers(1, 1 << 40), st.lists(st.integers(0, 9), max_size=20)), max_size=8
)
SHARDS = st.lists(st.tuples(st.sampled_from(["wiki", "web"]), DOCUMENTS), min_size=1, max_size=4)


def of(source: str, documents: list[tuple[int, list[int]]]) -> Statistics:
    """Counts of documents given as characters and tokens."""
    characters = np.array([each for each, _ in documents], np.int64)
    tokens = np.array([len(ids) for _, ids in documents], np.int64)
    stream = np.array([token for _, ids in documents for token in ids], np.uint32)
    return Statistics.of(source, characters, tokens, stream, vocab_size=10)


def test_histograms_by_hand() -> None:
    found = of("wiki", [(1, [1]), (10, [1, 1, 1]), (16, [1, 1, 1, 0]), (4, [1] * 8)])
    assert found.document_tokens[:5].tolist() == [1, 1, 1, 1, 0]
    assert found.document_characters[:6].tolist() == [1, 0, 1, 1, 1, 0]
    assert np.flatnonzero(found.tokens_per_character).tolist() == [5, 6, 20]  # 0.25, 0.3, 1 and 2
    assert found.tokens_per_character[20] == 2
    assert found.token_counts.tolist() == [1, 15, *[0] * 8]
    assert found.documents == {"wiki": 4}
    assert found.characters == {"wiki": 31}


@pytest.mark.parametrize("length", [1, 2, 3, 4, 1023, 1024, 2**31 - 1, 2**31, 2**50])
def test_lengths_fall_between_powers_of_two(length: int) -> None:
    (filled,) = np.flatnonzero(of("wiki", [(length, [])]).document_characters)
    assert filled == min(length.bit_length() - 1, 31)


@given(SHARDS, st.integers(0, 4))
def test_merging_shards_is_counting_them_together(
    shards: list[tuple[str, list[tuple[int, list[int]]]]], cut: int
) -> None:
    parts = [of(*shard) for shard in shards]
    merged = Statistics.merge(parts)
    everything = of("all", [each for _, documents in shards for each in documents])
    summary = merged.summary(unknown=0)
    assert summary == everything.summary(unknown=0)
    assert merged.characters.total() == everything.characters.total()
    for source in ("wiki", "web"):
        expected = sum(len(documents) for name, documents in shards if name == source)
        assert merged.documents[source] == expected
    groups = [group for group in (parts[:cut], parts[cut:]) if group]
    regrouped = Statistics.merge([Statistics.merge(group) for group in groups])
    text = json.dumps(merged.to_json())
    assert (
        regrouped.to_json() == merged.to_json() == Statistics.from_json(json.loads(text)).to_json()
    )


def test_the_summary_tells_how_well_the_vocabulary_fits() -> None:
    summary = of("wiki", [(9, [1, 2, 2, 0])]).summary(unknown=1)
    assert summary["unknown_share"] == 0.25
    assert summary["unused_tokens"] == 7
    assert json.loads(json.dumps(summary)) == summary


def test_labels_of_lengths() -> None:
    assert labelled_lengths([0, 0, 3, 0, 1, 0]) == [("4 to 7", 3), ("8 to 15", 0), ("16 to 31", 1)]
    assert labelled_lengths([2, 0]) == [("1", 2)]
    assert labelled_lengths([0, 0]) == []
