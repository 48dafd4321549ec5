from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from crammed.config import TokenizerConfig
from crammed.data.tokenization import chunks as chunks_module
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.training import train_from_texts, train_from_words
from support.text import documents

TEXTS = [
    *documents(80),
    "Él café naïve Straße İstanbul ǅ ﬁne ΣΑΣ ½ 10,000.50 don't [MASK] [UNK] x|y",
    "我们今天去学校。한국어 문장 ไทย ผม がぎぐ العربية हिन्दी",
]
OPTIONS = list(product((False, True), repeat=3))
AWKWARD = (
    " \t\n\r\x0b\x0c\x00\x01\x1c\x1f\x7f\x85\xa0\xad\u200b\u2028\u2029\u3000\ufeff\ufffd"
    "\u0301\u0323\u0345\u05b0\u3099\U0001d165'`\u037e\u1fef\u212a|[]MASKa#,.;A"
    "İẞßΣςｱ\uf900\u4dff\u4e00\u4fff\u5000\u9fff\ua000가각\u1100\u1161😀👩\u200d👩🇩"
)
DOCUMENT = st.text() | st.text(st.sampled_from(AWKWARD) | st.characters(max_codepoint=0x7F))


def corpus_tokenizer(lowercase: bool, strip_accents: bool, ascii_only: bool) -> CorpusTokenizer:
    config = TokenizerConfig(
        vocab_size=400, lowercase=lowercase, strip_accents=strip_accents, ascii_only=ascii_only
    )
    chunks = cut_into_chunks(TEXTS)
    counts = zip(chunks.distinct.to_pylist(), chunks.counts.tolist(), strict=True)
    return CorpusTokenizer(train_from_words(counts, config))


TOKENIZERS = [corpus_tokenizer(*options) for options in OPTIONS]


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(st.lists(DOCUMENT, max_size=6))
@example([])
@example(["", "", ""])
@example(["a" * 101, "b" * 250 + "!", "[MASK][CLS] [ MASK ]", ""])
@example(["a\x0bb\x0cc\x85d\u2028e\xa0f", ",\u0301\u0323x", "国\u0301\u0323,a\u0301"])
@settings(max_examples=150, deadline=None)
def test_chunks_give_the_ids_of_the_ordinary_path(texts: list[str]) -> None:
    chunks = cut_into_chunks(texts)
    for each in TOKENIZERS:
        assert each.takes_chunks
        assert same(each.encode_chunks(chunks), each.encode_texts(texts))


@given(st.lists(DOCUMENT, max_size=6))
@settings(max_examples=100, deadline=None)
def test_chunks_are_the_text(texts: list[str]) -> None:
    chunks = cut_into_chunks(texts)
    distinct = chunks.distinct.to_pylist()
    begins = [0, *chunks.ends.tolist()][: len(texts)]
    for text, begin, end in zip(texts, begins, chunks.ends.tolist(), strict=True):
        assert "".join(distinct[code] for code in chunks.codes[begin:end]) == text
    assert len(set(distinct)) == len(distinct)
    assert np.array_equal(np.bincount(chunks.codes, minlength=len(distinct)), chunks.counts)


def test_chunks_are_words_with_the_space_before_and_single_punctuation() -> None:
    chunks = cut_into_chunks(["The cat,  sat.", "the 国a天"])
    expected = ["The", " cat", ",", "  sat", ".", "the", " ", "国a", "天"]
    assert chunks.distinct.to_pylist() == expected
    assert chunks.ends.tolist() == [5, 9]


def test_known_chunks_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks_module, "MOST_KNOWN", 50)
    each = corpus_tokenizer(lowercase=True, strip_accents=True, ascii_only=False)
    for at in range(0, 80, 10):
        texts = TEXTS[at : at + 10]
        assert same(each.encode_chunks(cut_into_chunks(texts)), each.encode_texts(texts))
        assert len(each._remembered) <= 50 + len(cut_into_chunks(texts).distinct)


def bert(**changes: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]"])
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def test_only_tokenizers_that_cut_at_words_take_the_fast_path() -> None:
    assert CorpusTokenizer(bert()).takes_chunks
    odd = normalizers.Sequence(
        [normalizers.BertNormalizer(), normalizers.Replace(Regex("a b"), "c")]
    )
    joins_chinese = normalizers.BertNormalizer(handle_chinese_chars=False)
    for change in (
        {"normalizer": odd},
        {"normalizer": joins_chinese},
        {"normalizer": normalizers.NFC()},
        {"normalizer": None},
        {"pre_tokenizer": pre_tokenizers.WhitespaceSplit()},
        {"pre_tokenizer": None},
        {"model": models.BPE()},
        {"model": models.WordPiece(vocab={"[UNK]": 0, "a": 1}, continuing_subword_prefix="")},
    ):
        assert not CorpusTokenizer(bert(**change)).takes_chunks
    with_phrase = bert()
    with_phrase.add_tokens(["a b"])
    assert not CorpusTokenizer(with_phrase).takes_chunks


def test_the_ordinary_path_gives_the_librarys_ids() -> None:
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    tokenizer = train_from_texts(TEXTS, sum(map(len, TEXTS)), config)
    tokenizer.enable_truncation(3)
    ids, ends = CorpusTokenizer(tokenizer).encode_texts(["the old sailor", "", "naïve"])
    tokenizer.no_truncation()
    expected = [
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in ("the old sailor", "", "naïve")
    ]
    assert ids.tolist() == [number for part in expected for number in part]
    assert ends.tolist() == np.cumsum([len(part) for part in expected]).tolist()
    assert tokenizer.encode("[MASK]").ids == [2, 4, 3]  # the caller's tokenizer is unchanged


def test_hidden_special_tokens_keep_every_id() -> None:
    """A special piece of the vocabulary cannot be found in text, not even by WordPiece alone."""
    tokenizer = bert(pre_tokenizer=pre_tokenizers.WhitespaceSplit(), normalizer=None)
    tokenizer.add_special_tokens(["[X]"])  # after the vocabulary
    ids, _ = CorpusTokenizer(tokenizer).encode_texts(["a [UNK] [X] a"])
    assert ids.tolist() == [1, 0, 0, 1]
    assert CorpusTokenizer(tokenizer).vocab_size == 3
