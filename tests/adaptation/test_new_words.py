"""Words that an adapted model's tokenizer is given: what they begin as, and what is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import normalizers

import crammed
from crammed.adaptation.adapting import ask_for
from crammed.adaptation.new_words import _documents, _in_text, words_to_add
from crammed.adaptation.original import Original
from crammed.cli import exporting as command
from crammed.config import DataConfig
from crammed.data.corpus import Corpus
from crammed.data.tokenization.tokenizer import begins_word
from crammed.errors import InputError
from crammed.export.card import Metadata
from crammed.export.huggingface import export
from crammed.runs.directory import read_config
from support.adapting import FAMILIES, SMALL, save_family
from support.corpora import stopping
from support.models import byte_pairs, save_model, untrained
from support.pages import front_matter
from support.text import documents, tiny, write_jsonl

WORDS = ("tokamak", "zymurgy")


@pytest.fixture
def bert(tmp_path: Path) -> Original:
    """One whose tokenizer reads in lower case."""
    original = Original.find(str(save_model(tmp_path / "bert", "bert")))
    library = original.backbone.tokenizer.backend_tokenizer
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    return original


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text with two frequent words that no small tokenizer has."""
    return write_jsonl(
        tmp_path / "text.jsonl",
        [f"{t} {'tokamak, zymurgy, tokamak. ' * 9} Tokamak!" for t in documents(300)],
    )


def words_of(path: Path, asked: str, original: Original, **values: Any) -> tuple[str, ...]:
    data = DataConfig.model_validate({"sources": [str(path)], **values})
    return words_to_add(asked, original.backbone.tokenizer, data)


def test_the_most_frequent_words_that_are_split_are_chosen(bert: Original, text: Path) -> None:
    assert words_of(text, "2", bert) == WORDS
    text.write_text("no record\n" + text.read_text())
    assert words_of(text, "2", bert, unreadable="skip") == WORDS


def test_no_more_is_counted_of_a_source_than_is_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Mock(backend_tokenizer=Mock(normalizer=None))
    for name, word in (("own", "boat"), ("general", "war"), ("more", "lamp")):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{word} {word} {n}" for n in range(9)])
    sources = [
        {
            "path": str(tmp_path / "own.jsonl"),
            "max_characters": 30,
        },  # in the third document
        {"path": str(tmp_path / "general.jsonl"), "max_characters": 1},
        {"path": str(tmp_path / "more.jsonl")},
    ]
    data = DataConfig.model_validate({"sources": sources})
    assert [t.split()[0] for t in _documents(data)] == [*["boat"] * 3, "war", *["lamp"] * 9]
    monkeypatch.setattr("crammed.adaptation.new_words.MOST_CHARACTERS", 45)
    assert [t.split()[0] for t in _documents(data)] == [*["boat"] * 3, "war", "lamp"]
    assert list(_in_text(data, tokenizer)) == ["boat", "lamp", "war"]


def test_words_keep_the_marks_on_their_letters(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "text.jsonl", ["हिन्दी की भाषा, it's a-b c_d ab1cd e\u0301\u0301 \u0301"]
    )
    data = DataConfig.model_validate({"sources": [str(file)]})
    found = list(_in_text(data, Mock(backend_tokenizer=Mock(normalizer=None))))
    assert found == sorted(["हिन्दी", "की", "भाषा", "it", "ab", "cd", "e\u0301\u0301"])


def test_a_file_names_words_and_those_that_are_tokens_are_left_out(
    bert: Original, text: Path, tmp_path: Path
) -> None:
    vocabulary = sorted(bert.backbone.tokenizer.get_vocab())
    known = next(w for w in vocabulary if w.isalpha() and w.islower() and len(w) > 2)
    file = tmp_path / "words.txt"
    file.write_text(f"zymurgy\n\n{known}\nTokamak\ntokamak\n")
    assert words_of(text, str(file), bert) == ("zymurgy", "tokamak")


def test_words_of_ideographs_are_found_in_text(bert: Original, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("选项\n")
    words = words_of(text, str(file), bert)
    assert words == ("选项",)
    larger: Any = bert.with_words(words).tokenizer
    number = larger.token_to_id("选项")
    for typed in ("选项", "打开选项 名称", "a 选项 b"):
        assert larger.encode(typed).ids.count(number) == 1


def test_a_word_with_the_letters_of_a_piece_keeps_the_pieces_embedding(
    tmp_path: Path, text: Path
) -> None:
    original = Original.find(str(save_model(tmp_path / "roberta", "roberta")))
    tokenizer = original.backbone.tokenizer
    backend = tokenizer.backend_tokenizer
    piece = next(
        each
        for each in sorted(tokenizer.get_vocab())
        if each.isascii()
        and each.isalpha()
        and len(each) > 1
        and len(backend.encode(f" {each}", add_special_tokens=False).ids) > 1
    )
    file = tmp_path / "words.txt"
    file.write_text(f"{piece}\nzymurgy\n", "utf-8-sig")  # as Windows saves it
    assert words_of(text, str(file), original) == ("zymurgy",)


@pytest.mark.parametrize(
    ("asked", "content", "message"),
    [
        ("0", "", "choose 1 to 100,000, or name a file"),
        ("9" * 5000, "", "choose 1 to 100,000, or name a file"),
        ("none.txt", "", "not a text file, nor a number"),
        ("words.txt", "zymurgy\ntwo words\n", r"words\.txt, line 2: 'two words' is more than one"),
        ("words.txt", "\n", "it has no word that the tokenizer splits: leave it out"),
    ],
)
def test_what_names_no_words_is_refused(
    bert: Original,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    content: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        words_of(text, asked, bert)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_words_begin_near_the_mean_and_all_else_stays(tmp_path: Path, family: str) -> None:
    original = Original.find(str(save_family(tmp_path / family, family)))
    config = ask_for(original, ["data.row_length=32"], {}).config
    before = original.model(config).model.get_input_embeddings().weight.detach()
    old = sorted(original.backbone.tokenizer.get_vocab().values())
    larger = original.with_words(WORDS)
    assert larger.sha256 != original.sha256
    one, other = (larger.model(config).model for _ in range(2))
    after = one.get_input_embeddings().weight.detach()
    assert torch.equal(after, other.get_input_embeddings().weight)
    assert torch.equal(after[old], before[old])
    new = after[[larger.backbone.tokenizer.get_vocab()[word] for word in WORDS]]
    assert not torch.equal(new[0], new[1])
    apart = (new - before[old].mean(0)).norm(dim=1)
    assert (apart < 0.02 * (before[old] - before[old].mean(0)).norm(dim=1).mean()).all()
    output = one.get_output_embeddings()
    assert len(output.weight) == len(after)
    assert output.bias is None or len(output.bias) == len(after)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_exported_has_the_words(tmp_path: Path, text: Path, family: str) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    model = save_family(tmp_path / family, family)
    out = tmp_path / "run"
    run = crammed.adapt(model, SMALL, data=text, new_words=2, budget="3updates", out=out)
    assert run.summary is not None
    assert run.summary.adapted is not None
    assert run.summary.adapted.new_words == 2
    tokenizer = AutoTokenizer.from_pretrained(out / "export")
    loaded = AutoModelForMaskedLM.from_pretrained(out / "export")
    ids = tokenizer("a tokamak, zymurgy", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(ids)[1] == "tokamak"
    assert ids[-1] == tokenizer.get_vocab()["zymurgy"]
    corpus = Corpus(out / "corpus").tokenizer
    assert corpus.encode("a tokamak").ids == tokenizer("a tokamak").input_ids
    logits = loaded(tokenizer("a tokamak", return_tensors="pt").input_ids).logits
    assert logits.shape[-1] > max(tokenizer.get_vocab().values())
    assert "its tokenizer was given 2 words" in (out / "report.html").read_text()


def test_models_of_our_own_get_words_too(tmp_path: Path, text: Path, corpus: Corpus) -> None:
    shape = tiny("crammed-2022").model
    final, known = untrained(corpus.tokenizer, shape), Metadata("mit", base_model="owner/encoder")
    folder = export(final, tmp_path / "ours", "custom", metadata=known).path
    run = crammed.adapt(
        folder, SMALL, data=text, new_words=2, budget="2updates", out=tmp_path / "run"
    )
    assert run.result["export"]["format"] == "CrammedForMaskedLM"
    assert run.result["export"]["logit_difference"] < 1e-5
    again = Original.find(str(tmp_path / "run"))
    assert "tokamak" in again.tokenizer.get_vocab()
    assert again.lacks == set()
    told = json.loads((tmp_path / "run" / "export" / "tokenizer_config.json").read_text())
    assert told["tokenizer_class"] == "PreTrainedTokenizerFast"  # transformers 4 knows no other
    assert not isinstance(told.get("extra_special_tokens"), list)
    command.export(tmp_path / "run", tmp_path / "copy")
    for card in (front_matter(tmp_path / "run" / "export"), front_matter(tmp_path / "copy")):
        assert "custom_code" in card["tags"]
        assert (card["license"], card["base_model"]) == ("mit", "owner/encoder")


def test_words_are_trained_and_a_run_continues_with_its_own(tmp_path: Path, text: Path) -> None:
    model, out = save_model(tmp_path / "bert", "bert"), tmp_path / "run"
    run = crammed.adapt(model, SMALL, data=text, new_words=2, budget="8updates", out=out)
    weights = load_file(out / "export" / "model.safetensors")
    new = weights["bert.embeddings.word_embeddings.weight"][-2:]
    begun = Original.find(str(model)).with_words(WORDS).model(read_config(out))
    before = begun.model.get_input_embeddings().weight.detach()[-2:]
    assert not torch.allclose(new, before, atol=1e-5)
    again = crammed.adapt(model, SMALL, data=text, new_words=2, budget="8updates", out=out)
    assert again.result == run.result
    with pytest.raises(InputError, match="another configuration"):
        crammed.adapt(model, SMALL, data=text, new_words=1, budget="8updates", out=out)


def test_where_tokens_hold_the_space_before_them_so_do_words(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "roberta", "roberta")
    before = byte_pairs().encode("the", add_special_tokens=False).ids
    original = Original.find(str(folder)).with_words(WORDS)
    found: Any = original.tokenizer.encode("the tokamak", add_special_tokens=False)
    assert found.ids == [*before, original.tokenizer.token_to_id("tokamak")]
    assert found.ids[-1] not in original.tokenizer.encode("the tokamaks").ids
    assert begins_word(original.tokenizer)[found.ids[-1]]


def test_a_command_killed_while_it_prepares_text_may_be_repeated_with_other_words(
    tmp_path: Path, text: Path
) -> None:
    model, out, words = save_model(tmp_path / "bert", "bert"), tmp_path / "run", tmp_path / "w.txt"
    words.write_text("zymurgy\n")
    with stopping("mix_sources"):
        crammed.adapt(model, SMALL, data=text, new_words=words, budget="2updates", out=out)
    assert {"tokenizer", ".corpus.preparing"} <= {each.name for each in out.iterdir()}
    words.write_text("tokamak\n")
    crammed.adapt(model, SMALL, data=text, new_words=words, budget="2updates", out=out)
    for tokenizer in (Corpus(out / "corpus").tokenizer, Original.find(str(out)).tokenizer):
        assert [word for word in WORDS if word in tokenizer.get_vocab()] == ["tokamak"]


def test_a_number_of_new_words_needs_text_to_count(tmp_path: Path, corpus: Corpus) -> None:
    model, out = save_model(tmp_path / "bert", "bert"), tmp_path / "run"
    said = "^--new-words N takes the words from the text: name it with --data, not --corpus$"
    with pytest.raises(InputError, match=said):
        crammed.adapt(model, corpus=corpus.path, new_words=100, budget="2updates", out=out)
    assert not out.exists()
