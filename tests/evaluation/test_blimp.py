from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crammed.errors import InputError
from crammed.evaluation import blimp
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.backbones.tokens import Tokenized
from crammed.evaluation.blimp import blimp_score, sentence_scores
from crammed.tasks import pairs
from crammed.tasks.pairs import read_pairs
from crammed.tasks.rows import Texts
from support.models import save_model
from support.text import sentences

CPU = torch.device("cpu")


def line(good: str, bad: str, uid: str = "island", **more: Any) -> dict[str, Any]:
    kinds = {"linguistics_term": f"{uid}s", "field": "syntax", "UID": uid}
    return {"sentence_good": good, "sentence_bad": bad, **kinds, "pairID": "0", **more}


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "bert", "bert")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Backbone:
    return BackboneSpec(str(folder)).load()


def by_definition(folder: Path, sentence: str) -> float:
    """The score from the definition: one masked token at a time, by transformers alone."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
    total = 0.0
    for place, token in enumerate(ids[0].tolist()):
        if token in tokenizer.all_special_ids and token != tokenizer.unk_token_id:
            continue
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        with torch.inference_mode():
            total += float(model(input_ids=masked).logits[0, place].log_softmax(-1)[token])
    return total


def test_a_sentences_score_is_its_pseudo_log_likelihood(folder: Path, bert: Backbone) -> None:
    # Equal and different lengths, a repetition, one token changed, an unknown letter, no text.
    texts = [*sentences(5), "the red fox", "the red fox", "the red boats", "the \u00df fox", ""]
    scores = sentence_scores(bert, texts, CPU)
    expected = [by_definition(folder, text) for text in texts]
    assert scores == pytest.approx(expected, abs=1e-3)
    assert scores[5] == pytest.approx(scores[6])
    assert scores[-1] == 0.0


def test_the_columns_are_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text("utf-8")
    assert all(f"`{column}`" in page for column in pairs.COLUMNS)


class Table:
    """An encoder of letters whose model gives a letter the same probability in every place."""

    name, sha256, parameters = "table", "", 0
    max_length, pad, mask, sep = 8, 0, 1, 2
    specials = frozenset({0, 1, 2})

    def __init__(self, most: int = 1000) -> None:
        self.rows, self.most = 0, most

    def tokenize(self, texts: Sequence[Texts], max_length: int, *, words: bool) -> Tokenized:
        rows = [[*(ord(letter) - 90 for letter in text), 2] for (text,) in texts]
        offsets = np.cumsum([0, *map(len, rows)])
        cut = sum(len(row) > max_length for row in rows)
        ids = np.array([number for row in rows for number in row], np.int32)
        return Tokenized(ids, offsets, None, None, cut)

    def masked_lm(self, device: torch.device) -> Any:
        def model(ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
            if len(ids) > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.rows += len(ids)
            assert (ids.gather(1, positions) == self.mask).all()
            return torch.arange(40.0).log_softmax(0).expand(len(ids), 1, 40)

        return model


@given(st.lists(st.text("abc", max_size=6), min_size=1, max_size=12), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_every_token_is_masked_and_counted_once(texts: list[str], most: int) -> None:
    encoder: Any = Table(most)  # rows that do not fit into memory at once are scored one by one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blimp, "_TOKENS", {"cpu": 9})
        scores = sentence_scores(encoder, texts, CPU)
    of_letter = torch.arange(40.0).double().log_softmax(0)
    for text, score in zip(texts, scores, strict=True):
        assert score == pytest.approx(sum(float(of_letter[ord(c) - 90]) for c in text), abs=1e-3)
    assert encoder.rows == sum(map(len, texts))


def test_pairs_are_counted_by_paradigm_phenomenon_and_field(tmp_path: Path) -> None:
    lines = [
        line("c", "a", "one"),  # correct: a later letter is likelier
        line("a", "c", "one"),
        line("b", "b", "one"),  # a tie is not correct
        line("c", "b", "one"),
        line("b", "a", "two", linguistics_term="ones", field="syntax/semantics"),
        line("a", "b", "three", field="syntax_semantics"),
    ]
    encoder: Any = Table()
    result = blimp_score(encoder, write(tmp_path / "pairs.jsonl.gz", lines), CPU)
    assert result["pairs"] == 6
    assert result["paradigms"] == 3
    assert result["official"] is False
    assert result["paradigm"] == {"one": 50.0, "three": 0.0, "two": 100.0}
    assert result["phenomena"] == {"ones": 60.0, "threes": 0.0}
    assert result["fields"] == {"syntax": 50.0, "syntax_semantics": 50.0}
    assert result["blimp"] == 50.0  # of the paradigms, not of the pairs
    low, high = result["interval"]
    # Only paradigm one can vary: a third of the share of 4 pairs, each correct half of the time.
    assert low == pytest.approx(100 / 3, abs=9)
    assert high == pytest.approx(200 / 3, abs=9)
    assert json.loads(json.dumps(result)) == result


def test_a_folder_of_the_datas_own_files_is_read(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", [line("a", "b", "two")])
    write(tmp_path / "a.jsonl", [line("a", "b", "one"), line("c", "b", "one")])
    (tmp_path / "README.md").write_text("no pairs")
    assert [pair.paradigm for pair in read_pairs(tmp_path)] == ["one", "one", "two"]
    assert [pair.good for pair in read_pairs(tmp_path)] == ["a", "c", "a"]


def test_a_pipe_among_the_files_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match=r"x.jsonl is not an ordinary file"):
        read_pairs(tmp_path)


def test_halves_of_characters_are_in_no_pair(tmp_path: Path) -> None:
    half = "a\ud83d"
    file = write(tmp_path / "a.jsonl", [line(half, half, half, linguistics_term=half, field=half)])
    for text in read_pairs(file)[0]:
        text.encode()


def test_all_of_blimp_is_official(tmp_path: Path) -> None:
    lines = [line("c", "a", f"p{n}") for n in range(67) for _ in range(1000)]
    encoder: Any = Table()
    whole = blimp_score(encoder, write(tmp_path / "all.jsonl", lines), CPU)
    assert whole["official"] is True
    assert whole["interval"] == [100.0, 100.0]
    fewer = write(tmp_path / "fewer.jsonl", lines[1:])
    assert blimp_score(encoder, fewer, CPU)["official"] is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"sentence": "a"}', "line 1: no sentence_good: a line of BLiMP has sentence_good,"),
        ("[]", "holds no pairs"),
        ("{", "line 1: not valid JSON"),
        (json.dumps(line("a", "b", field=3)), "line 1: .* must hold text"),
        ("", "holds no pairs"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_pairs(file)


def test_what_cannot_be_scored_is_said(tmp_path: Path, bert: Backbone) -> None:
    with pytest.raises(InputError, match="no BLiMP data at"):
        read_pairs(tmp_path / "none")
    with pytest.raises(InputError, match="holds no pairs"):
        read_pairs(tmp_path)
    long = write(tmp_path / "long.jsonl", [line("fox " * 50, "fox")])
    words = "1 of 2 sentences are longer than the 40 tokens that bert takes: shorten or remove them"
    with pytest.raises(InputError, match=words):
        blimp_score(bert, long, CPU)
    unmasked: Any = SimpleNamespace(name="x", mask=None)
    with pytest.raises(InputError, match="tokenizer of x has no mask token"):
        blimp_score(unmasked, long, CPU)


def test_a_model_that_computes_no_numbers_has_no_score(tmp_path: Path) -> None:
    encoder: Any = Table()
    encoder.masked_lm = lambda device: lambda ids, at: torch.full((len(ids), 1, 40), torch.nan)
    pairs_file = write(tmp_path / "pairs.jsonl", [line("c", "a")])
    with pytest.raises(InputError, match="table computes no finite numbers: evaluate another"):
        blimp_score(encoder, pairs_file, CPU)
