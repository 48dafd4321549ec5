"""The option --extend of crammed prepare."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.cli import corpora
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.interface.corpora import _refuse_settings_of_its_own
from support.text import documents, write_jsonl


def test_a_corpus_is_extended_by_its_own_settings(tmp_path: Path, corpus: Corpus) -> None:
    texts = [text.replace(" ", f" {n} ") for n, text in enumerate(documents(60, seed=5))]
    text = write_jsonl(tmp_path / "new.records", texts)
    out = tmp_path / "larger"
    corpora.prepare(["data.format=jsonl"], [str(text)], out=out, extend=corpus.path)
    made = Corpus(out)
    assert made.manifest["documents"] == corpus.manifest["documents"] + 60
    assert (made.row_length, made.vocab_size) == (corpus.row_length, corpus.vocab_size)


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["data.row_length=64"], {}, "data.row_length=64: the corpus to extend was prepared with"),
        (["data.clean.near=0.8"], {}, "data.clean.near=0.8: the corpus to extend"),
        (["data={row_length: 64}"], {}, "data={row_length: 64}: the corpus to extend"),
        (["data={clean: {near: 0.8}}"], {}, "data={clean: {near: 0.8}}: the corpus to extend"),
        (["tokenizer.kind=bpe"], {}, "tokenizer.kind=bpe: the corpus to extend"),
        (["tokenizer={kind: bpe}"], {}, "tokenizer={kind: bpe}: the corpus to extend"),
        (None, {"heldout": ["x.txt"]}, "--heldout: the corpus to extend was prepared"),
        (None, {"fit": True}, "--fit: the corpus to extend was prepared with its own settings"),
    ],
)
def test_what_the_corpus_has_decided_is_refused(
    tmp_path: Path, corpus: Corpus, words: list[str] | None, options: dict[str, object], said: str
) -> None:
    text = write_jsonl(tmp_path / "new.jsonl", documents(60, seed=5))
    with pytest.raises(InputError) as caught:
        corpora.prepare(
            words,
            [str(text)],
            out=tmp_path / "larger",
            extend=corpus.path,
            **options,  # type: ignore[arg-type]
        )
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "larger").exists()


@pytest.mark.parametrize("step", ["function=f.py:keep", "entities=en", "downstream=[]"])
def test_steps_whose_code_or_data_the_corpus_lacks_may_be_named(step: str) -> None:
    key, _, value = step.partition("=")
    for word in (f"data.clean.{step}", f"data={{format: jsonl, clean: {{{key}: '{value}'}}}}"):
        _refuse_settings_of_its_own([word], heldout=False, fit=False)
