from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.borders import same_document

SEP = 3
ROWS = st.integers(1, 12).flatmap(
    lambda length: st.lists(
        st.lists(st.sampled_from([SEP, 5, 6]), min_size=length, max_size=length), min_size=1
    )
)


@given(ROWS)
def test_tokens_are_in_the_same_document_if_no_separator_ends_it_between_them(
    rows: list[list[int]],
) -> None:
    found = same_document(torch.tensor(rows), SEP)
    length = len(rows[0])
    assert found.dtype == torch.bool
    assert found.shape == (len(rows), length, length)
    for row, same in zip(rows, found.tolist(), strict=True):
        for a in range(length):
            for b in range(length):
                assert same[a][b] == (SEP not in row[min(a, b) : max(a, b)])
