"""What steps drop and cut out, seen in the corpus."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.terminal.progress import Progress
from support.corpora import prepared, prepared_and_told, step_of, tokens_of
from support.text import documents, sentences, write_jsonl, write_rows


def test_duplicates_and_empty_documents_are_dropped_and_counted(
    make_corpus: Callable[..., Corpus],
) -> None:
    texts = documents(100)
    corpus = make_corpus([*texts, *texts[:7], "", "  \n"])
    for name, kept, dropped in (("empty", 107, 2), ("exact duplicates", 100, 7)):
        step = step_of(corpus, name)
        assert (step["kept"], step["dropped"]) == (kept, dropped)


def test_the_compressibility_filter_drops_dense_documents(
    make_corpus: Callable[..., Corpus],
) -> None:
    junk = "!?;,.:" * 300
    corpus = make_corpus([*documents(200), junk], "data.clean.max_tokens_per_character=0.5")
    step = corpus.manifest["steps"][-1]
    assert step["step"] == "tokens per character"
    assert step["dropped"] == 1
    assert step["characters"] == len(junk)


def test_a_filter_that_drops_everything_is_named(make_corpus: Callable[..., Corpus]) -> None:
    said = (
        r"^too little text: 0 tokens do not fill a row of 32; "
        r"data\.clean\.max_tokens_per_character dropped \d+ documents: raise it, or set it to null$"
    )
    with pytest.raises(InputError, match=said):
        make_corpus(documents(200), "data.clean.max_tokens_per_character=0.001")


@pytest.mark.parametrize("step", ["gopher", "c4"])
def test_rules_for_english_that_drop_most_documents_are_named(tmp_path: Path, step: str) -> None:
    texts = [
        " ".join(f"Writer{n} the village{n} with basket{n} of apple{n}." for n in range(a, a + 20))
        for a in range(0, 400, 20)
    ]
    for others, told in ((10, False), (30, True)):
        source = write_jsonl(tmp_path / f"{others}.jsonl", [*texts, *["我们今天去学校。"] * others])
        _, said = prepared_and_told(tmp_path / f"{others}", source, f"data.clean.{step}=true")
        words = f"{step} dropped {others} of {20 + others} documents: its rules are made for"
        assert (words in said) == told
    source, shown = write_jsonl(tmp_path / "other.jsonl", ["我们今天去学校。"]), io.StringIO()
    with pytest.raises(InputError, match="no document is left"):
        prepared(tmp_path / "other", source, f"data.clean.{step}=true", progress=Progress(shown))
    assert f"{step} dropped 1 of 1 document: " in shown.getvalue()


def test_near_duplicates_are_dropped(make_corpus: Callable[..., Corpus]) -> None:
    pytest.importorskip("rensa")
    long = " ".join(sentences(60, seed=5))
    texts = [*documents(200), long, long.replace("day 7.", "day seven.")]
    corpus = make_corpus(texts, "data.clean.near=0.8")
    assert step_of(corpus, "near-duplicates")["dropped"] == 1


def test_repeated_passages_are_cut_out(make_corpus: Callable[..., Corpus]) -> None:
    pytest.importorskip("pydivsufsort")
    passage = " ".join(sentences(8, seed=5))
    texts = documents(200)
    texts[10] += f" Before. {passage} After."
    texts[150] += f" Other. {passage} End."
    corpus = make_corpus(texts, "data.clean.substring=200")
    step = step_of(corpus, "repeated passages")
    assert (step["dropped"], step["changed"]) == (0, 1)
    assert abs(step["characters"] - len(passage)) < 5
    found = corpus.tokenizer.decode(tokens_of(corpus)) + _heldout(corpus).lower()
    assert found.count(passage.lower()[20:60]) <= 1


def test_what_repeats_in_held_out_text_is_cut_out_of_it(make_corpus: Callable[..., Corpus]) -> None:
    pytest.importorskip("pydivsufsort")
    passage = " ".join(sentences(8, seed=5))
    texts = [f"{text} {passage} Number {n}." for n, text in enumerate(documents(200))]
    corpus = make_corpus(texts, "data.clean.substring=200", "data.heldout_copies=keep")
    found = corpus.tokenizer.decode(tokens_of(corpus)) + _heldout(corpus).lower()
    assert found.count(passage.lower()[20:60]) == 1


def test_documents_with_downstream_sentences_are_dropped(
    tmp_path: Path, make_corpus: Callable[..., Corpus]
) -> None:
    planted = "the committee will meet again on friday to talk about the new bridge over the river"
    row = {"sentence1": planted, "sentence2": "The bridge is new.", "label": 0}
    for split in ("train", "validation"):
        write_rows(tmp_path / "glue" / "rte" / f"{split}.jsonl", [row])
    texts = documents(200)
    texts[7] += f" {planted.capitalize()}, he said."
    corpus = make_corpus(texts, f"data.clean.downstream={tmp_path / 'glue'}")
    assert step_of(corpus, "downstream")["dropped"] == 1
    assert str(tmp_path) not in (corpus.path / "manifest.json").read_text()
    (sample,) = gzip.decompress((corpus.path / "dropped.jsonl.gz").read_bytes()).splitlines()
    assert json.loads(sample)["step"] == "downstream"


def _heldout(corpus: Corpus) -> str:
    return gzip.decompress(corpus.heldout.read_bytes()).decode()
