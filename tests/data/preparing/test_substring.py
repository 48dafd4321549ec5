"""Exact repeated passages."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.preparing.cleaning import substring
from crammed.data.preparing.cleaning.substring import repeated_spans
from crammed.data.preparing.select import selection
from crammed.errors import InputError
from support.corpora import prepared
from support.text import documents, write_jsonl

pytest.importorskip("pydivsufsort")

ASCII_TEXTS = st.lists(st.text("ab", max_size=25), max_size=5)
WIDE_TEXTS = st.lists(st.text("aé€😀😁\U0005f600", max_size=12), max_size=4)
"""Among the last three, two share their first three bytes, and two their last three."""


def reference(texts: list[bytes], shortest: int) -> list[set[int]]:
    """For each text, the bytes in windows that have ended before they begin again."""
    seen: dict[bytes, int] = {}
    before = 0
    covered: list[set[int]] = []
    for text in texts:
        inside: set[int] = set()
        for start in range(len(text) - shortest + 1):
            first = seen.setdefault(text[start : start + shortest], before + start)
            if before + start >= first + shortest:
                inside.update(range(start, start + shortest))
        covered.append(inside)
        before += len(text)
    return covered


def bytes_in(spans: list[tuple[int, int]]) -> set[int]:
    return {place for start, end in spans for place in range(start, end)}


@given(ASCII_TEXTS, st.integers(1, 6))
def test_equals_its_reference(texts: list[str], shortest: int) -> None:
    """Spans are in order and apart."""
    encoded = [text.encode() for text in texts]
    found = repeated_spans(encoded, shortest)
    assert [bytes_in(spans) for spans in found] == reference(encoded, shortest)
    for text, spans in zip(encoded, found, strict=True):
        ends = [0, *(end for _, end in spans)]
        assert all(start > end or start == 0 for (start, _), end in zip(spans, ends, strict=False))
        assert all(shortest <= end - start for start, end in spans)
        assert ends[-1] <= len(text)


@given(WIDE_TEXTS, st.integers(1, 8))
def test_spans_hold_whole_characters(texts: list[str], shortest: int) -> None:
    encoded = [text.encode() for text in texts]
    found = repeated_spans(encoded, shortest)
    for text, spans, covered in zip(texts, found, reference(encoded, shortest), strict=True):
        ends = list(accumulate((len(character.encode()) for character in text), initial=0))
        characters = [set(range(start, end)) for start, end in pairwise(ends)]
        assert bytes_in(spans) == set().union(*(c for c in characters if c <= covered))


def test_too_much_text_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substring, "MOST_BYTES", 9)
    assert repeated_spans([b"abcdefghi"], 20) == [[]]
    with pytest.raises(InputError, match=r"10 bytes .* data\.clean\.near"):
        repeated_spans([b"abcde", b"fghij"], 20)


def test_too_much_text_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", documents(300))
    monkeypatch.setattr(substring, "MOST_BYTES", 5_000)
    loaded = Mock()
    monkeypatch.setattr(selection, "without_spans", loaded)
    with pytest.raises(InputError, match=r"data\.clean\.substring takes at most 5000: use"):
        prepared(tmp_path / "out", file, "compute.workers=1", "data.clean.substring=100")
    assert not loaded.called
