from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from crammed.config import TokenizerConfig
from crammed.data.tokenization import training as train_tokenizer
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.tokenizer import (
    MOST_IDS,
    SPECIALS,
    Specials,
    begins_word,
    load_tokenizer,
    to_json,
    vocabulary_size,
)
from crammed.data.tokenization.training import train_from_texts, train_from_words
from crammed.errors import InputError
from crammed.rules.recipe import load_config
from support.text import documents

KINDS = ("wordpiece", "wordlevel", "bpe", "unigram", "sentencepiece-bpe")
PYTHON = """def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)  # e.g. mean([1.5, 2.5]) == 2.0
"""
LANGUAGES = {
    "Korean": "한국어 문서를 저장하려면 파일 메뉴에서 저장을 누르세요.",
    "Chinese": "我们今天去学校学习语言模型。老师说“读书很有用”。",
    "Arabic": "القطة تجلس على السجادة الحمراء، والكلب ينام في الحديقة.",
    "Turkish": "Kediler güneşli bahçede uyuyor; İstanbul'da ılık bir gün.",  # noqa: RUF001
    "code": PYTHON,
}


def words_of(texts: list[str]) -> dict[str, int]:
    words = cut_into_chunks(texts)
    return dict(zip(words.distinct.to_pylist(), words.counts.tolist(), strict=True))


def trained(texts: list[str], **fields: Any) -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 300, **fields})
    if config.by_chunk:
        return train_from_words(words_of(texts).items(), config)
    return train_from_texts(texts, sum(map(len, texts)), config)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", KINDS)
def test_same_bytes_in_any_order_of_the_documents(kind: str) -> None:
    texts = documents(200)
    first = to_json(trained(texts, kind=kind))
    assert first == to_json(trained(texts, kind=kind)) == to_json(trained(texts[::-1], kind=kind))


def test_same_bytes_under_any_hash_seed_and_number_of_threads() -> None:
    """Each interpreter trains all kinds, because starting one takes longer than that."""
    texts = documents(200)
    code = (
        "import json, sys; from crammed.config import TokenizerConfig\n"
        "from crammed.data.tokenization.tokenizer import to_json\n"
        "from crammed.data.tokenization.training import *\n"
        "texts, words = json.load(sys.stdin)\n"
        "def trained(kind):\n"
        "    config = TokenizerConfig(kind=kind, vocab_size=300)\n"
        "    if config.by_chunk:\n"
        "        return to_json(train_from_words(words.items(), config))\n"
        "    return to_json(train_from_texts(texts, sum(map(len, texts)), config))\n"
        f"print(json.dumps([trained(kind) for kind in {KINDS}]))"
    )
    here = {kind: to_json(trained(texts, kind=kind)) for kind in KINDS}
    for seed, threads in (("0", "1"), ("12345", "3")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([texts, words_of(texts)]),
            env={
                "PYTHONHASHSEED": seed,
                "RAYON_NUM_THREADS": threads,
                "PYTHONPATH": ":".join(sys.path),
                "PATH": "",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        for kind, there in zip(KINDS, json.loads(done.stdout), strict=True):
            assert there == here[kind], (kind, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_specials_have_the_first_ids_and_frame_sentences(kind: str) -> None:
    tokenizer = trained(documents(100), kind=kind)
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3, 4]
    assert Specials.of(tokenizer).ids == (0, 1, 2, 3, 4)
    pair = tokenizer.encode("two boats", "at night")
    assert pair.tokens[0] == "[CLS]"
    assert pair.tokens.count("[SEP]") == 2
    assert pair.type_ids[0] == 0
    assert pair.type_ids[-1] == 1
    assert vocabulary_size(tokenizer) == tokenizer.get_vocab_size() <= 300


def test_continuing_characters_are_ordinary_tokens() -> None:
    tokenizer = trained(documents(100), vocab_size=200)
    assert "##a" not in tokenizer.encode("a ##a", add_special_tokens=False).tokens[1:2]
    assert tokenizer.token_to_id("##a") is not None


@pytest.mark.parametrize("kind", KINDS)
def test_case_accents_and_ascii(kind: str) -> None:
    texts = ["Él café 東京 naïve el"] * 5

    def normal(**fields: Any) -> str:
        normalizer: Any = trained(texts, kind=kind, vocab_size=400, **fields).normalizer
        return " ".join(normalizer.normalize_str("ÉL Café 東京").split())

    spaced = kind in ("wordpiece", "wordlevel")
    assert normal() == ("el cafe 東 京" if spaced else "el cafe 東京")
    assert normal(ascii_only=True) == "el cafe"
    assert normal(strip_accents=False) in ("él café 東 京", "él café 東京")
    assert normal(lowercase=False) in ("EL Cafe 東 京", "EL Cafe 東京")
    assert "ÉL Café" in normal(lowercase=False, strip_accents=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_other_languages_and_code_are_known_and_come_back(kind: str, language: str) -> None:
    text = LANGUAGES[language]
    tokenizer = trained(
        [text] * 20, kind=kind, vocab_size=512, lowercase=False, strip_accents=False
    )
    encoder = CorpusTokenizer(tokenizer)
    ids, _ = encoder.encode_texts([text])
    assert SPECIALS.index("[UNK]") not in ids
    back = tokenizer.decode(ids.tolist())
    assert "".join(back.split()) == "".join(tokenizer.normalizer.normalize_str(text).split())
    assert plain_ids(tokenizer, text) == ids.tolist()
    if encoder.takes_chunks:
        assert encoder.encode_chunks(cut_into_chunks([text]))[0].tolist() == ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_syllables_of_hangul_stay_whole_unless_accents_are_stripped(kind: str) -> None:
    """BERT's way to strip accents takes syllables apart, but no letter is lost."""
    text = "한글 문서"

    def normal(recipe: str, **fields: Any) -> str:
        own = load_config(recipe, [], {}).tokenizer.model_dump(exclude={"kind", "vocab_size"})
        tokenizer = trained([text] * 20, kind=kind, vocab_size=400, **{**own, **fields})
        assert SPECIALS.index("[UNK]") not in plain_ids(tokenizer, text)
        return str(tokenizer.normalizer.normalize_str(text))

    assert normal("crammed") == text
    apart = normal("crammed-2022", ascii_only=False)
    assert unicodedata.normalize("NFC", apart) == text
    assert (apart != text) == (kind in ("wordpiece", "wordlevel"))


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_looks_like_special_tokens_stays_text(kind: str) -> None:
    texts = [f"{text} [ MASK or UNK or SEP or CLS or PAD ]" for text in documents(60)]
    tokenizer = trained(texts, kind=kind, lowercase=False)
    encoder = CorpusTokenizer(tokenizer)
    ids, _ = encoder.encode_texts(["or [MASK] or [SEP] or [UNK]", "[PAD][CLS]"])
    assert min(ids) > 4
    assert tokenizer.encode("[MASK]", add_special_tokens=False).ids == [4]


def test_wordpiece_words_and_counts_are_those_of_the_library() -> None:
    texts = ["Don't | PANIC!  ½ İx a\x0bb ﬁ; 我们们 x|y «Été»\n\nIt's", "don't||stop — now"]
    config = TokenizerConfig()
    normalizer, cut = train_tokenizer._bert_normalizer(config), pre_tokenizers.BertPreTokenizer()
    expected: dict[str, int] = {}
    for text in texts:
        for word, _ in cut.pre_tokenize_str(normalizer.normalize_str(text)):
            expected[word] = expected.get(word, 0) + 1
    found = train_tokenizer._words_of(words_of(texts).items(), config)
    assert found == dict(sorted(expected.items()))


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.integers(1, 2000), min_size=1),
    st.integers(1, 5000),
    st.randoms(),
)
@settings(max_examples=50, deadline=None)
def test_thinning_keeps_shares_and_does_not_depend_on_order(
    words: dict[str, int], most: int, draw: random.Random
) -> None:
    thinned = train_tokenizer._thinned(words, most)
    shuffled = list(words.items())
    draw.shuffle(shuffled)
    assert train_tokenizer._thinned(dict(shuffled), most) == thinned
    share = min(1.0, most / sum(words.values()))
    for word, count in words.items():
        if word in thinned:
            assert abs(thinned[word] - share * count) < 1.0
        else:  # it would occur once
            assert share < 1.0
            assert share * count < 2.0


def test_training_on_fewer_words_finds_the_same_frequent_ones() -> None:
    texts = documents(300)
    whole, part = (
        trained(texts, vocab_size=250, train_words=most).get_vocab() for most in (10**6, 3000)
    )
    assert whole != part
    assert {"the", "##s", "on"} <= set(whole) & set(part)


def test_texts_are_thinned_by_their_hash() -> None:
    texts = [f"{number} " * 200 for number in range(400)]
    count: Callable[[list[str]], int] = lambda some: sum(map(len, some))  # noqa: E731
    kept = list(train_tokenizer._thinned_texts(texts, 0.5))
    assert 0.4 < count(kept) / count(texts) < 0.6
    backwards = list(train_tokenizer._thinned_texts(texts[::-1], 0.5))
    assert sorted(kept) == sorted(backwards)


def test_a_word_without_end_takes_no_part_in_training() -> None:
    """Genomes, or a megabyte of one letter: the library would take hours."""
    endless = "".join(random.Random(0).choices("acgt", k=1_000_000))
    config = TokenizerConfig(vocab_size=100)
    tokenizer = train_from_words([("tag", 5), (endless, 2)], config)
    assert "tag" in tokenizer.get_vocab()
    assert {"a", "##c", "##g"} < tokenizer.get_vocab().keys()  # its letters count


def test_text_without_characters_or_too_many_is_refused() -> None:
    with pytest.raises(InputError, match="no characters"):
        trained(["東京"], ascii_only=True)
    with pytest.raises(InputError, match="too small for its characters"):
        trained(["".join(map(chr, range(0x5000, 0x5100)))], kind="unigram", vocab_size=64)
    with pytest.raises(InputError, match="vocab_size=261"):
        trained(["text"], kind="bpe", vocab_size=100)


def saved_elsewhere(names: dict[str, int], **settings: Any) -> Tokenizer:
    """A WordPiece tokenizer whose special tokens have these names and ids."""
    words = ["the", "red", "fox", "##es", "two", "boats", "a"]
    free = [n for n in range(40) if n not in names.values()]
    vocabulary = dict(zip(words, free, strict=False)) | names
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=next(iter(names))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def test_supplied_tokenizers_keep_names_and_ids(tmp_path: Path) -> None:
    names = {"<unk>": 3, "<pad>": 1, "<s>": 0, "</s>": 2, "<mask>": 30}
    tokenizer = saved_elsewhere(names)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        specials = Specials.of(loaded)
        assert specials == Specials(pad=1, unk=3, cls=0, sep=2, mask=30)
        assert specials.names(loaded)["mask"] == "<mask>"
        assert vocabulary_size(loaded) == 31  # including ids without a token
        assert loaded.encode("the red fox two boats").tokens[:2] == ["<s>", "the"]
        assert len(loaded.encode("the red fox two boats").ids) == 7


def test_unusual_names_are_read_from_the_files_beside_it(tmp_path: Path) -> None:
    names = {"<|unk|>": 3, "<|pad|>": 1, "<|begin|>": 0, "<|end|>": 2, "<|gap|>": 30}
    saved_elsewhere(names).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"lacks special tokens: pad \(\[PAD\] or <pad>\), unk"):
        load_tokenizer(tmp_path)
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    more = {"mask_token": {"content": "<|gap|>", "lstrip": True}, "unk_token": "<|unk|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(more))
    loaded = load_tokenizer(tmp_path)
    assert Specials.of(loaded) == Specials(pad=1, unk=3, cls=0, sep=2, mask=30)
    assert loaded.encode("the what").tokens == ["[CLS]", "the", "[UNK]", "[SEP]"]


def test_a_tokenizer_without_a_mask_or_none_at_all_is_refused(tmp_path: Path) -> None:
    saved_elsewhere({"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3}).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(InputError, match=r"lacks special tokens: mask \(\[MASK\] or <mask>\)"):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="no tokenizer at"):
        load_tokenizer(tmp_path / "nowhere.json")


def _hostile(values: Any, draw: random.Random) -> Any:
    """A tokenizer.json with one value replaced or missing."""
    values = json.loads(json.dumps(values))
    at = values
    while True:
        key: Any = draw.choice([*at]) if isinstance(at, dict) else draw.randrange(len(at))
        if not isinstance(at[key], dict | list) or not at[key] or draw.random() < 0.2:
            break
        at = at[key]
    at[key] = draw.choice([None, -1, 2**32 - 1, 10**12, 1.5, "", "x", [], {}, True, {"type": "X"}])
    if draw.random() < 0.3:
        del at[key]
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_takes_the_place_of_a_word(kind: str) -> None:
    """In kinds whose tokens begin with the space before them, that space is a part of the word."""
    tokenizer = trained(documents(100), kind=kind)
    one, two, ids = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in ("the", "the the", "the [MASK] the")
    )
    assert ids == [*one, 4, *two[len(one) :]]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_damaged_tokenizers_are_one_line(tmp_path: Path, kind: str) -> None:
    whole = json.loads(to_json(trained(documents(100), kind=kind)))
    file, draw = tmp_path / "tokenizer.json", random.Random(0)
    messages: list[str] = []
    for _ in range(300):
        file.write_text(json.dumps(_hostile(whole, draw)))
        try:
            tokenizer = load_tokenizer(file)
        except InputError as error:
            messages.append(str(error))
        else:
            CorpusTokenizer(tokenizer).encode_texts(["Some [MASK] text."])
            assert vocabulary_size(tokenizer) < MOST_IDS
    assert 100 < len(messages) < 300
    assert not any("\n" in message for message in messages)
    for content in (
        b"",
        b"[" * 100_000,
        b"{}",
        b'{"model": {}}',
        b"5",
        b"\xff",
        json.dumps(whole)[:-9].encode(),
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"is not a tokenizer\.json"):
            load_tokenizer(file)


def test_an_id_that_no_embedding_has_is_refused_at_once(tmp_path: Path) -> None:
    values = json.loads(to_json(trained(documents(100))))
    values["model"]["vocab"]["the"] = 2**32 - 1  # the library would count up to it
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"a token with the id 4,294,967,295; ids must be below"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", [5, ["[CLS]"], {"content": 5}, {"content": ["a"]}])
def test_special_tokens_that_are_no_text_are_refused(tmp_path: Path, token: object) -> None:
    (tmp_path / "tokenizer.json").write_text(to_json(trained(documents(100))))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"cls_token": token}))
    with pytest.raises(InputError, match="name no text as the cls token"):
        load_tokenizer(tmp_path)


def test_a_saved_tokenizer_is_loaded_unchanged(tmp_path: Path) -> None:
    for kind in KINDS:
        tokenizer = trained(documents(100), kind=kind)
        (tmp_path / "tokenizer.json").write_text(to_json(tokenizer), "utf-8")
        assert to_json(load_tokenizer(tmp_path)) == to_json(tokenizer)


def test_characters_of_a_few_names_do_not_fill_the_vocabulary() -> None:
    foreign = [chr(0x5000 + n) for n in range(8)]
    texts = [*documents(3000), " ".join(foreign)]
    vocabulary = trained(texts, vocab_size=400).get_vocab()
    assert not set(foreign) & set(vocabulary)
    assert set("".join(texts[:-1]).lower()) - {" "} <= set(vocabulary)


def test_ideographs_take_one_entry_each_and_letters_two() -> None:
    """BERT's pre-tokenizer cuts around ideographs, so that ``##`` forms of them never occur."""
    ideographs = [chr(0x4E00 + n) for n in range(150)]
    texts = ["".join(ideographs) + " and かな カナ 한글 ไทย", *["one more word"] * 3] * 3
    vocabulary = trained(texts, vocab_size=400, strip_accents=False).get_vocab()
    assert set(ideographs) < vocabulary.keys()  # with two entries each, only 97 would fit
    assert not {f"##{each}" for each in ideographs} & vocabulary.keys()
    both = set("andかなカナ한글ไทย")
    assert both | {f"##{each}" for each in both} < vocabulary.keys()


def test_turkish_keeps_its_two_letters_i_with_the_setting_that_the_page_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "languages.md").read_text("utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| Turkish"))
    key, value = row.split("`")[1].removeprefix("tokenizer.").split("=")
    fields: dict[str, Any] = {key: value == "true", "strip_accents": False}
    plain, told = (
        str(trained(["IIKI"], **each).normalizer.normalize_str("I")) for each in ({}, fields)
    )
    assert (plain, told) == ("i", "I")


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece-bpe"])
def test_words_too_long_for_a_trainer_are_learned_from_in_pieces(kind: str) -> None:
    draw = random.Random(1)
    texts = ["".join(draw.choices("acgt", k=6000)) for _ in range(4)]
    tokenizer = trained(texts, kind=kind)
    ids = plain_ids(tokenizer, texts[0])
    assert tokenizer.token_to_id("[UNK]") not in ids
    assert len(ids) < 6000 / 2


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece-bpe"])
def test_a_few_words_too_long_for_a_trainer_change_nothing(kind: str) -> None:
    texts = documents(200) * 20
    assert to_json(trained([*texts, "gattaca" * 700], kind=kind)) == to_json(
        trained(texts, kind=kind)
    )


def test_a_few_ideographs_in_other_text_change_nothing() -> None:
    """One in a hundred entries may be wasted, so that vocabularies of English stay the same."""
    for count, wasted in ((4, True), (5, False)):
        quoted = "".join(chr(0x4E00 + n) for n in range(count))
        vocabulary = trained([*documents(60), *[quoted] * 9], vocab_size=400).get_vocab()
        assert ("##\u4e00" in vocabulary) == wasted


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wordlevel"])
def test_it_is_known_where_words_begin(kind: str) -> None:
    texts = list(documents(60))
    tokenizer = trained(texts, kind=kind)
    begins = begins_word(tokenizer)
    assert begins[list(Specials.of(tokenizer).ids)].all()
    words = [each[::-1] for each in re.findall("[a-z]+", " ".join(texts[:5]).lower())]
    assert any(len(plain_ids(tokenizer, word)) > 1 for word in words)
    for word in words:
        before, both = plain_ids(tokenizer, "a"), plain_ids(tokenizer, f"a {word}")
        first, *others = both[len(before) :]
        assert begins[first]
        assert not begins[others].any()


def test_a_tokenizer_that_marks_no_words_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate([*SPECIALS, "a"])}, []))
    with pytest.raises(InputError, match="leave masking"):
        begins_word(tokenizer)
