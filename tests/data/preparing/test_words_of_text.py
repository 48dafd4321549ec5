"""Words are told apart in every script, whatever separates them."""

from __future__ import annotations

import random
import re
import tracemalloc
from itertools import accumulate, chain
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.data.preparing.cleaning import words
from crammed.data.preparing.cleaning.words import Screen, hashes_of, word_hashes, words_of
from crammed.data.tokenization.chunks import cut_into_chunks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's (not) A_TEST-case.", "it s not a test case"),
        ("one\u00a0two\u2003three\u3000four\nfive\x85six", "one two three four five six"),
        ("Größe, „naïve“ CAFÉ e\u0301\u0323", "grosse naive cafe e"),
        ("soft\u00adhyphen\u200b \ufeffmark \x01con\x02trol", "softhyphen mark control"),
        ("\uff37\uff29\uff24\uff25 \uff14\uff12 \ufb01ne", "wide 42 fine"),
        ("中文\uff0c一二", "中 文 一 二"),
        ("हिन्दी भाषा", "हनद भष"),
        ("한국어는 있다", "한국어는 있다"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert [normalize("NFC", word) for word in words_of(text)] == expected.split()


SCRIPTS = [
    "กขคงจฉชซฌญดตถทธนบปผพฟภมยรลวศสหอ",
    "あいうえおかきくけこさしすせそなにぬねの",
    "ꦏꦒꦔꦕꦗꦚꦠꦢꦤꦥ",
]


@given(st.text("".join(map(chr, [*range(9, 14), *range(32, 127)]))))
def test_words_of_ascii_text_are_its_letters_and_digits(text: str) -> None:
    assert words_of(text) == re.findall(r"[^\W_]+", text.lower())


def test_long_words_of_ascii_letters_are_cut_if_wanted() -> None:
    long = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKV"
    assert words_of(f"{long} Größe") == [long.lower(), "grosse"]
    cut = words_of(f"x{long}", cut_ascii=True)
    assert len(cut) > 4
    assert cut[1:] == words_of(long, cut_ascii=True)[1:]


@pytest.mark.parametrize("letters", SCRIPTS)
def test_a_passage_without_spaces_is_cut_alike_wherever_it_stands(letters: str) -> None:
    draw = random.Random(0)
    passage, before, after = ("".join(draw.choices(letters, k=200)) for _ in range(3))
    alone, within = words_of(passage), words_of(before + passage + after)
    assert len(alone) > 10
    assert " ".join(alone[1:-1]) in " ".join(within)


@given(st.text(max_size=60), st.text(max_size=60))
def test_words_are_those_of_the_parts_between_spaces(one: str, other: str) -> None:
    assert words_of(f"{one} {other}") == words_of(one) + words_of(other)


@given(
    st.lists(st.text("aé\u0301\u00a0 \n,_一国\u0e01\u3042", max_size=90), max_size=4), st.booleans()
)
def test_hashes_of_chunked_text_are_those_of_its_words(texts: list[str], cut_ascii: bool) -> None:
    """Each distinct chunk is hashed once."""
    hash_words = word_hashes(hashes_of, cut_ascii=cut_ascii)
    for some in (texts, texts[::-1]):  # then all chunks are known
        hashes, ends = hash_words(cut_into_chunks(some))
        own = [words_of(text, cut_ascii=cut_ascii) for text in some]
        assert hashes.tolist() == hashes_of(chain.from_iterable(own)).tolist()
        assert ends.tolist() == list(accumulate(map(len, own)))


# ---- the screen


@pytest.mark.parametrize(("many", "passing"), [(29, 0.07), (16, 0.25)])
def test_a_screen_takes_little_more_than_its_table(
    monkeypatch: pytest.MonkeyPatch, many: int, passing: float
) -> None:
    monkeypatch.setattr(words, "_MANY_BITS", many)
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
