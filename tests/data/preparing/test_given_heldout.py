"""Corpora that hold out the documents of another corpus, and train on none of them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from crammed.cli import corpora
from crammed.config import TokenizerConfig
from crammed.data import shards
from crammed.data.heldout import heldout_documents, heldout_texts
from crammed.data.preparing.select import given_heldout
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.data.preparing.select.heldout_choice import SEAM
from crammed.data.tokenization.chunks import cut_into_chunks
from crammed.errors import InputError
from support.corpora import prepared, step_of, tokens_of
from support.text import documents, sentences, tiny, write_jsonl


@pytest.mark.parametrize(
    "overrides",
    [
        ["tokenizer.vocab_size=300"],
        ["data.row_length=64", "model.max_length=64"],
        ["data.clean.exact=false", "data.heldout_copies=keep"],
        ["data.clean.min_characters=160"],
        ["data.heldout_fraction=0.2"],
    ],
)
def test_corpora_of_other_settings_hold_out_the_same_documents(
    tmp_path: Path, overrides: list[str]
) -> None:
    texts = documents(300)
    file = write_jsonl(tmp_path / "text.jsonl", [*texts, *texts[:150]])
    base = prepared(tmp_path / "base", file)
    other = prepared(tmp_path / "other", file, *overrides, heldout=base)
    assert other.heldout.read_bytes() == base.heldout.read_bytes()
    held = list(heldout_texts(base.heldout))
    assert len(held) == other.manifest["heldout"]["documents"] > 0
    seen = other.tokenizer.decode(tokens_of(other))
    days = [text.partition(" on day ")[2].partition(".")[0] for text in held]  # a number for each
    assert not [day for day in days if f"on day {day}." in seen]
    dropped = step_of(other, "held-out documents")["dropped"]
    assert dropped >= len(held) - overrides[0].count("min_characters") * len(held)


def test_the_end_of_a_document_is_held_out_of_both(tmp_path: Path) -> None:
    book = " ".join(sentences(4000))
    file = write_jsonl(tmp_path / "book.jsonl", [book])
    base = prepared(tmp_path / "base", file)
    other = prepared(tmp_path / "other", file, "tokenizer.vocab_size=300", heldout=base)
    assert other.heldout.read_bytes() == base.heldout.read_bytes()
    assert other.manifest["characters"] == base.manifest["characters"]
    (part,) = heldout_texts(base.heldout)
    assert other.manifest["characters"] + SEAM + len(part) == len(book)


def test_files_of_ones_own_are_held_out(tmp_path: Path) -> None:
    """Whatever their format; copies of them in the text are dropped, and each file is a source."""
    texts = documents(300)
    news, tales = documents(40, seed=7), documents(40, seed=8)
    (tmp_path / "news.txt").write_text("\r\n\r\n".join(["Caf\u0065\u0301.", *news]))
    write_jsonl(tmp_path / "tales.jsonl", ["", *tales])
    near = [f"{text} It rained." for text in tales]
    file = write_jsonl(tmp_path / "text.jsonl", [*news, *texts, *near, "Caf\u00e9."])
    own = [str(tmp_path / "news.txt"), str(tmp_path / "tales.jsonl")]
    made = prepared(tmp_path / "made", file, heldout=own)
    held = list(heldout_documents(made.heldout))
    assert [text for text, _ in held] == ["Caf\u00e9.", *news, *tales]
    assert {source for _, source in held} == {"news.txt", "tales.jsonl"}
    dropped = {step["step"]: step["dropped"] for step in made.manifest["steps"]}
    assert dropped["held-out documents"] == 41
    copies = dropped["copies of held-out text"]  # and a few that consist of the same phrases
    assert 40 <= copies < 60
    heldout = made.manifest["heldout"]
    assert heldout["documents"] == 81
    assert [part["name"] for part in heldout["parts"]] == ["news.txt", "tales.jsonl"]
    assert made.manifest["documents"] == 340 - copies


def test_a_share_to_hold_out_beside_files_is_refused(tmp_path: Path) -> None:
    share, out = "data.heldout_fraction=0.2", tmp_path / "out"
    with pytest.raises(InputError, match=r"fraction is set twice, by --heldout and by an override"):
        corpora.prepare([share], ["text.txt"], out=out, heldout=["own.txt"])


def test_a_held_out_file_without_text_is_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "text.jsonl", documents(300))
    empty = write_jsonl(tmp_path / "empty.jsonl", ["", " "])
    with pytest.raises(InputError, match=r"--heldout .*empty\.jsonl holds no text"):
        prepared(tmp_path / "a", file, heldout=[str(empty)])
    short = write_jsonl(tmp_path / "short.jsonl", ["A short text."])
    with pytest.raises(InputError, match=r"32 tokens: add text or lower data\.row_length$"):
        prepared(tmp_path / "a", file, heldout=[str(short)])
    assert not [each for each in tmp_path.iterdir() if each.is_dir()]


def test_text_that_is_all_held_out_is_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "text.jsonl", documents(300))

    def choose(tokens: float) -> TokenizerConfig:
        return TokenizerConfig(vocab_size=1000 + int(1 / tokens))

    with pytest.raises(InputError, match="the data holds no text to train on"):
        prepared(tmp_path / "made", file, heldout=[str(file)], choose=choose)
    assert [each.name for each in tmp_path.iterdir()] == ["text.jsonl"]


@pytest.mark.parametrize("named", [["both"], ["both/en/test.jsonl", "both/de/test.jsonl"]])
def test_files_of_the_same_name_are_sources_of_their_own(tmp_path: Path, named: list[str]) -> None:
    for number, folder in enumerate(("en", "de"), 7):
        write_jsonl(tmp_path / "both" / folder / "test.jsonl", documents(20, seed=number))
    data = tiny(data={"sources": [str(tmp_path / each) for each in named]}).data
    given = GivenHeldout.read(data, tmp_path)
    held = [source for _, source in heldout_documents(given.file)]
    assert len(held) == 40
    assert len({*held}) == 2


def test_long_documents_are_compared_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "held.jsonl", documents(40))
    given = GivenHeldout.read(tiny(data={"sources": [str(file)]}).data, tmp_path)
    cut = Mock(side_effect=cut_into_chunks)
    monkeypatch.setattr(given_heldout, "cut_into_chunks", cut)
    given.write_runs(tmp_path / "at-once.npy")
    assert cut.call_count == 1
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1_000)
    given.write_runs(tmp_path / "apart.npy")
    assert cut.call_count > 5
    at_once, apart = (np.sort(np.load(tmp_path / f"{name}.npy")) for name in ("at-once", "apart"))
    assert np.array_equal(at_once, apart)
