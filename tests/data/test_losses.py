from __future__ import annotations

from typing import Any

import pytest

from crammed.config import TokenizerConfig
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.losses import (
    describe_losses,
    has_no_spaces,
    lost_characters,
    remarks,
    sample_of,
)
from crammed.data.tokenization.training import train_from_words

GERMAN = "„Größe“ … kostet 5 € mehr als die Länge, und die Übung macht Spaß. "
PERSIAN = "این کتاب\u200cها را می\u200cخوانم. "  # noqa: RUF001


def described(text: str, **fields: Any) -> str | None:
    config = TokenizerConfig.model_validate({"vocab_size": 300, **fields})
    words = cut_into_chunks([text])
    counts = zip(words.distinct.to_pylist(), words.counts.tolist(), strict=True)
    return describe_losses(train_from_words(counts, config), text, config)


def test_every_loss_is_named_with_its_share_and_the_keys_that_keep_it() -> None:
    assert described(GERMAN * 9, strip_accents=False) is None
    assert described(GERMAN * 9, ascii_only=True) == (
        "changes or drops 17.0 % of the characters of this text (ö becomes o, "
        "ä becomes a, ü becomes u, ß „ “ … € vanish); "
        "tokenizer.strip_accents=false tokenizer.ascii_only=false keep them"
    )


@pytest.mark.parametrize(
    ("text", "fields", "shown"),
    [
        ("यह एक छोटा वाक्य है। ", {}, "◌ै"),
        (PERSIAN, {"strip_accents": False}, "(U+200C vanishes); tokenizer.kind=bpe keeps them"),
        (PERSIAN, {"ascii_only": True, "strip_accents": False}, "tokenizer.ascii_only=false keeps"),
        (GERMAN, {"file": "tokenizer.json"}, "that is how the tokenizer in tokenizer.file is"),
    ],
)
def test_marks_and_joiners_can_be_read(text: str, fields: dict[str, Any], shown: str) -> None:
    assert shown in (described(text * 9 + "abc", **fields) or "")


def test_case_forms_of_a_letter_and_what_is_invisible_are_no_loss() -> None:
    text = "PLAIN Σίσυφος İstanbul Ｗｉｄｅ \u00adsoft\u200b ﬁne ½ \u200e" * 9  # noqa: RUF001
    assert described(text, strip_accents=False) is None


def test_one_accent_among_a_thousand_characters_is_little() -> None:
    assert described("plain words of English " * 60 + "é") is None
    assert described("plain words of English " * 6 + "é") is not None
    config = TokenizerConfig(vocab_size=300)
    counts = [("é", 2), ("a", 2)]
    lost, characters = lost_characters(train_from_words(counts, config), "é a")
    assert (lost, characters) == ({"é": 1}, 2)


THAI = "โปรแกรมนี้นับจำนวนคำในเอกสาร และแสดงผลลัพธ์เป็นตารางบนหน้าจอ "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THAI, True),
        ("ဤပရိုဂရမ်သည်စာရွက်စာတမ်းရှိစကားလုံးအရေအတွက်ကိုရေတွက်သည်။ ", True),
        ("这个程序统计文档中的词语数量，并且把统计的结果以表格的形式显示在屏幕上。", False),  # noqa: RUF001
        ("このプログラムは文書の中の言葉を数えて、その結果を表として画面に表示します。", False),
        ("यह प्रोग्राम दस्तावेज़ में शब्दों की संख्या गिनता है। ", False),
        (
            "Rindfleischetikettierungsgesetz ist lang, doch " + "andere Wörter sind kurz. " * 6,
            False,
        ),
        ("https://example.org/averyveryverylongpath0123456789 is no word of letters. ", False),
        ("", False),
    ],
)
def test_text_without_spaces_between_words_is_told_from_other_text(
    text: str, expected: bool
) -> None:
    assert has_no_spaces(text * 5) is expected


def test_unigram_is_suggested_where_word_pieces_would_be_cut_from_phrases() -> None:
    def said(text: str, **fields: Any) -> str:
        config = TokenizerConfig.model_validate({"strip_accents": False, **fields})
        tokenizer = train_from_words([("a", 2)], config.model_copy(update={"kind": "wordpiece"}))
        return "; ".join(remarks(tokenizer, text, config))

    assert "tokenizer.kind=unigram suits it better" in said(THAI * 5)
    assert not said("plain words " * 5)
    assert not said(THAI * 5, kind="unigram")
    assert not said(THAI * 5, file="tokenizer.json")


def test_a_sample_is_of_all_parts_of_all_texts() -> None:
    assert sample_of(["plain words", THAI], 99) == f"plain words {THAI}"
    texts = ["plain words of English " * 100] * 600 + [THAI * 9] * 600 + ["x" * 400_000]
    some = sample_of(texts, sum(map(len, texts)))
    assert 0.9 < len(some) / 200_000 < 1.1
    for part in ("plain", THAI[:9], "x"):
        share = sum(text.count(part) for text in texts) / sum(map(len, texts))
        assert some.count(part) / len(some) == pytest.approx(share, rel=0.2)
