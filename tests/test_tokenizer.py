from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from conftest import documents
from crammed.config import TokenizerConfig
from crammed.data.tokenizer import SPECIALS, to_json, train_tokenizer
from crammed.errors import InputError


def trained(texts: list[str], **fields: object) -> str:
    config = TokenizerConfig.model_validate({"vocab_size": 300, **fields})
    return to_json(train_tokenizer(lambda: texts, config))


def test_same_bytes_in_any_order_of_the_documents() -> None:
    texts = documents(200)
    assert trained(texts) == trained(texts) == trained(texts[::-1])


def test_same_bytes_under_any_hash_seed() -> None:
    code = (
        "from conftest import documents; from test_tokenizer import trained; import hashlib;"
        "print(hashlib.sha256(trained(documents(200)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "12345")
    }
    assert digests == {hashlib.sha256(trained(documents(200)).encode()).hexdigest()}


def test_specials_have_the_first_ids_and_frame_sentences() -> None:
    tokenizer = train_tokenizer(lambda: documents(100), TokenizerConfig(vocab_size=200))
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3, 4]
    pair = tokenizer.encode("two boats", "at night")
    assert pair.tokens[0] == "[CLS]"
    assert pair.tokens.count("[SEP]") == 2
    assert pair.type_ids[0] == 0
    assert pair.type_ids[-1] == 1
    assert tokenizer.get_vocab_size() <= 200


def test_continuing_characters_are_ordinary_tokens() -> None:
    tokenizer = train_tokenizer(lambda: documents(100), TokenizerConfig(vocab_size=200))
    assert "##a" not in tokenizer.encode("a ##a", add_special_tokens=False).tokens[1:2]
    assert tokenizer.token_to_id("##a") is not None
    decoded = tokenizer.decode(tokenizer.encode("the sailor repairs boats").ids)
    assert decoded == "the sailor repairs boats"


def test_case_accents_and_ascii() -> None:
    texts = ["Él café 東京 naïve"] * 5
    plain = train_tokenizer(lambda: texts, TokenizerConfig(vocab_size=200))
    assert plain.encode("ÉL", add_special_tokens=False).tokens == ["el"]
    ascii_only = train_tokenizer(lambda: texts, TokenizerConfig(vocab_size=200, ascii_only=True))
    assert ascii_only.encode("東京", add_special_tokens=False).tokens == []
    cased = train_tokenizer(
        lambda: texts, TokenizerConfig(vocab_size=200, lowercase=False, strip_accents=False)
    )
    assert cased.encode("Él café", add_special_tokens=False).tokens == ["Él", "café"]


@pytest.mark.parametrize(
    "text",
    [
        "我们今天去学校学习语言模型。",
        "القطة تجلس على السجادة الحمراء",
        "Kediler güneşli bahçede uyuyor",
    ],
)
def test_other_languages_are_not_unknown(text: str) -> None:
    tokenizer = train_tokenizer(lambda: [text] * 20, TokenizerConfig(vocab_size=300))
    assert "[UNK]" not in tokenizer.encode(text).tokens


def test_text_without_characters_is_refused() -> None:
    with pytest.raises(InputError, match="no characters"):
        train_tokenizer(lambda: ["東京"], TokenizerConfig(vocab_size=100, ascii_only=True))
