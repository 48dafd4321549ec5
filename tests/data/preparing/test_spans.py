"""Spans to cut out of documents."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from crammed.data.preparing.cleaning.spans import NO_CUTS, Cuts, Span, both_cut, without_spans

BOUNDS = st.sets(st.integers(0, 30), max_size=12).map(sorted)


def spans_in(bounds: list[int], length: int) -> list[Span]:
    """Every other range between these bounds, some of which touch."""
    inside = [bound for bound in bounds if bound <= length]
    return list(pairwise(inside))[::2] if len(inside) % 2 else list(pairwise(inside))


@given(st.text("abcdefgh", max_size=30), BOUNDS, BOUNDS)
def test_both_cuts_are_one_after_the_other(text: str, one: list[int], other: list[int]) -> None:
    first = spans_in(one, len(text))
    left = without_spans(text, first)
    second = spans_in(other, len(left))
    both = both_cut(first, second)
    assert without_spans(text, both) == without_spans(left, second)
    assert all(a <= b for a, b in pairwise(place for span in both for place in span))


def test_cuts_are_found_by_document() -> None:
    spans: dict[int, list[Span]] = {2: [(0, 3), (5, 9)], 4: [(1, 2)], 9: [(7, 8)]}
    cuts = Cuts.from_spans(spans.items())
    assert {n: cuts.get(n) for n in range(11) if cuts.get(n)} == spans
    assert cuts.documents.tolist() == [2, 4, 9]
    part = cuts.between(3, 9)
    assert (part.get(1), len(part)) == ([(1, 2)], 1)
    assert cuts.of(part.documents + 3).get(4) == [(1, 2)]
    assert not NO_CUTS
    assert NO_CUTS.get(0) == []
    more = cuts.then(Cuts.from_spans([(2, [(0, 1)]), (3, [(4, 6)])]))
    assert more.get(2) == [(0, 3), (3, 4), (5, 9)]
    assert (more.get(3), more.get(9)) == ([(4, 6)], [(7, 8)])
