"""Texts become the tokens that transformers makes of them."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from crammed.config import TokenizerConfig
from crammed.data.tokenization.tokenizer import CLS, SEP
from crammed.data.tokenization.training import train_from_words
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.files.writing import write_json
from support.backbones import RECIPES, TEXTS, Load, row
from support.models import FAMILIES, save_model, save_tokenizer, untrained, word_pieces
from support.text import tiny


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_token_types_are_passed_exactly_where_the_model_has_them(
    load_model: Load, name: str
) -> None:
    encoder = load_model(name)
    tokens = encoder.tokenize(TEXTS, 32, words=False)
    assert (tokens.types is not None) == (name in ("bert", "bert-base"))
    if tokens.types is None:
        return
    ids, types = row(tokens, 0)
    assert types is not None
    assert types.tolist() == sorted(types.tolist())
    assert types[-1] == 1
    model = encoder.classifier(2, 0, trained=True, every_token=False).eval()
    with torch.inference_mode():
        mask = torch.ones_like(ids[None], dtype=torch.bool)
        typed, plain = model(ids[None], mask, types[None]), model(ids[None], mask)
    assert (typed - plain).abs().max() > 1e-4


@pytest.mark.parametrize("composed", [True, False])
@pytest.mark.parametrize("text", ["한국어 문서", "tiếng Việt", "\u092a\u0921\u093c\u093e"])
def test_a_run_reads_letters_and_marks_as_its_text_had_them(
    tmp_path: Path, text: str, composed: bool
) -> None:
    counts = [(word, 9) for word in text.split()]
    config = tiny("crammed", f"data.clean.unicode={composed}".lower())
    settings = TokenizerConfig(vocab_size=300, strip_accents=False)
    untrained(train_from_words(counts, settings), config.model).save(tmp_path / "run" / "final")
    write_json(tmp_path / "run" / "config.json", config.model_dump(mode="json"))
    run = BackboneSpec(str(tmp_path / "run")).load()
    other = unicodedata.normalize("NFD", text).replace("\u0921\u093c", "\u095c")
    assert (run.plain_ids(other) == run.plain_ids(text)) == composed
    one, same = (run.tokenize([(each,)], 32, words=False).ids.tolist() for each in (other, text))
    assert (one == same) == composed
    assert (run.composes(other), run.composes(text)) == (composed, False)


@pytest.mark.parametrize("length", [8, 13, 40])
@pytest.mark.parametrize("name", FAMILIES)
def test_token_ids_are_those_of_transformers(
    model_folders: dict[str, Path], load_model: Load, name: str, length: int
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model_folders[name])
    encoder = load_model(name)
    ours = encoder.tokenize(TEXTS, length, words=False)
    whole = 0
    for n, texts in enumerate(TEXTS):
        expected = theirs(*texts, truncation=True, max_length=length)
        ids, types = row(ours, n)
        assert ids.tolist() == expected["input_ids"]
        if types is not None:
            assert types.tolist() == expected["token_type_ids"]
        whole += theirs(*texts)["input_ids"] == expected["input_ids"]
    assert ours.cut == len(TEXTS) - whole
    long = "the fox " * 40
    plain = theirs(long, add_special_tokens=False)["input_ids"]
    assert list(encoder.plain_ids(long)) == plain


@pytest.mark.parametrize("name", [*RECIPES, *FAMILIES])
def test_text_that_looks_like_special_tokens_stays_text(load_model: Load, name: str) -> None:
    encoder = load_model(name)
    mask, sep = (
        encoder.tokenizer.decode([each], skip_special_tokens=False)
        for each in (encoder.mask, encoder.sep)
    )
    ids = list(encoder.plain_ids(f"the {mask} of {sep}"))
    assert not encoder.specials & {*ids}
    assert ids[:1] == list(encoder.plain_ids("the"))[:1]
    assert len(ids) > len(encoder.plain_ids("the of"))


@pytest.mark.parametrize("name", ["crammed", "bert", "roberta"])
def test_each_word_begins_at_its_first_token(load_model: Load, name: str) -> None:
    encoder = load_model(name)
    sentence = ("the", "unforgettable", "\u200b\n", "sailor's", "boats")
    tokens = encoder.tokenize([sentence, ("fox",) * 60, ()], 32, words=True)
    assert tokens.words is not None
    first = tokens.words[: tokens.offsets[1]]
    assert first[first >= 0].tolist() == [0, 1, 2, 3, 4]
    assert first[0] == first[-1] == -1  # special tokens
    assert (first < 0).sum() > 2  # later pieces of a word
    second = tokens.words[tokens.offsets[1] : tokens.offsets[2]]
    assert second[second >= 0].tolist() == list(range((second >= 0).sum()))
    assert tokens.cut == 1
    assert (tokens.words[tokens.offsets[2] :] == -1).all()


@pytest.mark.parametrize("name", ["crammed", "bert", "roberta"])
def test_words_become_the_tokens_of_their_sentence(load_model: Load, name: str) -> None:
    encoder = load_model(name)
    sentence = "the old sailor counts seven lanterns"
    split = encoder.tokenize([tuple(sentence.split())], 32, words=True)
    assert np.array_equal(split.ids, encoder.tokenize([(sentence,)], 32, words=False).ids)


def test_a_tokenizer_without_first_and_last_tokens_works(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "bert")
    save_tokenizer(folder, word_pieces(framed=False), model_max_length=40)
    encoder = BackboneSpec(str(folder)).load()
    tokens = encoder.tokenize([("the red fox",), ("",)], 32, words=False)
    assert not {CLS, SEP} & set(tokens.ids.tolist())
    assert np.diff(tokens.offsets)[1] == 1  # a sequence without tokens would have no logits
    model = encoder.classifier(2, 0, trained=True, every_token=False)
    assert model(row(tokens, 0)[0][None]).shape == (1, 2)


def test_tokenizers_written_in_python_give_the_same_as_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, EsmConfig, EsmTokenizer

    names = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"]
    (tmp_path / "words.txt").write_text("\n".join(names))
    tokenizer = EsmTokenizer(str(tmp_path / "words.txt"), model_max_length=30)
    folder = tmp_path / "esm"
    tokenizer.save_pretrained(folder)
    config = EsmConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=34,
        pad_token_id=1,
        mask_token_id=names.index("<mask>"),
    )
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    encoder = BackboneSpec(str(folder)).load()
    rows = [("L A G V S E R",), ("L A G V S E R", "T I D P"), ("K",)]
    tokens = encoder.tokenize(rows, 8, words=False)
    for n, texts in enumerate(rows):
        ids = tokenizer(*texts, truncation=True, max_length=8)["input_ids"]
        assert row(tokens, n)[0].tolist() == ids
    assert tokens.cut == 2
    assert list(encoder.plain_ids("L A")) == [4, 5]
    split = encoder.tokenize([("L", "", "A G", "V")], 6, words=True)
    assert split.ids.tolist() == [0, 4, 3, 5, 6, 2]  # V was truncated; the empty word is unknown
    assert split.words is not None
    assert split.words.tolist() == [-1, 0, 1, 2, -1, -1]
