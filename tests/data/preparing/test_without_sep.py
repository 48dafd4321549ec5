from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts, rows_of_corpus
from crammed.data.tokenization.tokenizer import CLS, SEP
from crammed.errors import InputError
from support.text import documents, tiny


@pytest.mark.parametrize("cls", [False, True])
def test_rows_and_held_out_rows_have_no_sep(
    make_corpus: Callable[..., Corpus], *, cls: bool
) -> None:
    texts = documents(200)
    corpus = make_corpus(texts, "data.sep=false", f"data.cls={str(cls).lower()}")
    rows = corpus.read(np.arange(corpus.rows)).ravel()
    held = list(heldout_texts(corpus.heldout))
    expected = [
        token
        for text in texts
        if text not in held
        for token in (
            *([CLS] if cls else []),
            *corpus.tokenizer.encode(text, add_special_tokens=False).ids,
        )
    ]
    assert rows.tolist() == expected[: len(rows)]
    assert len(expected) - len(rows) == corpus.manifest["tokens_left_out"]
    assert SEP not in rows_of_corpus(corpus, 500).ids
    tokens = sum(len(corpus.tokenizer.encode(text, add_special_tokens=False)) for text in held)
    share = corpus.manifest["heldout"]["tokens_per_character"]
    assert share == pytest.approx(tokens / sum(map(len, held)))


def test_what_needs_sep_is_refused_without_it() -> None:
    with pytest.raises((InputError, ValidationError), match=r"needs data\.sep=true"):
        tiny("crammed", "data.sep=false", "train.attention=document")
    with pytest.raises((InputError, ValidationError), match="fragments counts"):
        tiny("crammed", "data.sep=false", "data.orders=[fragments]")
    tiny("crammed", "data.sep=false")
