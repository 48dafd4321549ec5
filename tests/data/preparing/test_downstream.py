"""The search for texts of evaluation tasks in text to train on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crammed.config import CleanConfig, DownstreamConfig
from crammed.data.preparing.cleaning import downstream
from crammed.data.preparing.cleaning.downstream import SHORTEST, Downstream, downstream_settings
from crammed.data.preparing.cleaning.steps import settings_of
from crammed.data.preparing.cleaning.words import words_of
from crammed.errors import InputError
from support.tasks import PAIR
from support.text import tiny, write_rows

SENTENCE = "The ship's captain saw 12 white gulls over the grey harbour wall at dawn."
"""Fifteen runs of letters and digits."""
TEN = "a b c d e f g h i j"


def of(data: Path, suite: str = "glue", words: int | None = None) -> Downstream:
    return Downstream([DownstreamConfig(suite=suite, data=str(data), words=words)])


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """Three tasks, two of them compressed, one with two text columns."""
    write_rows(tmp_path / "cola/train.jsonl", [{"sentence": SENTENCE, "label": 1}])
    for task in ("rte", "sst2"):
        (tmp_path / task).mkdir()
    with gzip.open(tmp_path / "rte/train.jsonl.gz", "wt") as file:
        pair = {"sentence1": f"First {SENTENCE}", "sentence2": "Too short to matter.", "label": 0}
        file.write(json.dumps(pair) + "\n")
    with pa.output_stream(tmp_path / "sst2/validation.jsonl.zst", compression="zstd") as stream:
        row = {"sentence": TEN, "label": "k l m n o p q r s t", "idx": 0}
        stream.write(json.dumps(row).encode())
    return tmp_path


def test_texts_of_every_split_and_column(glue: Path) -> None:
    found = of(glue)
    assert found.occurs_in(f"He wrote: {SENTENCE.upper()} So it was.")
    assert found.occurs_in("x a-b-c (d) e\nf g h i; j y")
    assert not found.occurs_in("k l m n o p q r s t"), "a label is no text"
    assert not found.occurs_in("Too short to matter.")


def test_the_whole_text_is_needed(glue: Path) -> None:
    found = of(glue)
    assert not found.occurs_in(SENTENCE.replace(" at dawn", ""))
    assert not found.occurs_in(SENTENCE.replace("captain", "captain's"))
    assert not found.occurs_in("")


def test_passages_of_some_words_are_enough_if_wanted(glue: Path) -> None:
    found = of(glue, words=13)
    assert found.occurs_in(f"He saw: {SENTENCE.replace('The ship', 'The boat').lower()}")
    assert not found.occurs_in(SENTENCE.replace("white", "grey"))
    assert found.occurs_in(f"{TEN} k"), "shorter texts are found as a whole"
    assert not found.occurs_in(TEN[2:])


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("the caf\u00e9 by the old harbour wall opens at six in summer",) * 2,
        (
            "the cafe by the old harbour wall opens at six in summer",
            "\u201cThe CAFE\u0301\u201d\u00a0by the \uff4f\uff4c\uff44 harbour\u2013wall "
            "opens at six in sum\u00admer!",
        ),
        (
            "\u6211\u4eec\u660e\u5929\u4e0a\u5348\u4e00\u8d77\u53bb\u6e2f\u53e3",
            "\u4ed6\u8bf4\uff1a\u6211\u4eec\u660e\u5929\u4e0a\u5348\uff0c\u4e00\u8d77\u53bb\u6e2f\u53e3\u3002",
        ),
        ("\u0e01\u0e02\u0e04\u0e07 " * 12, "\u0e08\u0e01 " + "\u0e01\u0e02\u0e04\u0e07 " * 12),
    ],
)
def test_texts_in_any_script(tmp_path: Path, text: str, document: str) -> None:
    write_rows(tmp_path / "cola/train.jsonl", [{"sentence": text}])
    assert of(tmp_path).occurs_in(document)


FEW_WORDS = st.lists(st.sampled_from(["a", "b", "B", "\u00e9", "E", "1"]), max_size=30).map(
    " ".join
)


@settings(max_examples=40)
@given(
    st.lists(FEW_WORDS, min_size=1, max_size=6),
    FEW_WORDS,
    st.sampled_from([None, 10, 13]),
    st.sampled_from([1, downstream._BATCH]),
)
def test_it_equals_its_reference(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    document: str,
    words: int | None,
    batch: int,
) -> None:
    folder = tmp_path_factory.mktemp("glue")
    write_rows(folder / "cola/train.jsonl", [{"sentence": text} for text in texts])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downstream, "_BATCH", batch)
        if all(len(words_of(text)) < SHORTEST for text in texts):
            with pytest.raises(InputError, match="has no text of 10 words"):
                of(folder, words=words)
            return
        assert of(folder, words=words).occurs_in(document) == reference(texts, document, words)


def reference(texts: list[str], document: str, most: int | None) -> bool:
    """Every passage is looked for in turn."""
    shown = f" {' '.join(words_of(document))} "
    for text in texts:
        words = words_of(text)
        length = min(len(words), most or len(words))
        for start in range(len(words) - length + 1 if len(words) >= SHORTEST else 0):
            if f" {' '.join(words[start : start + length])} " in shown:
                return True
    return False


def test_many_texts_that_begin_alike(tmp_path: Path) -> None:
    rows = [{"sentence": f"{TEN} {n} again"} for n in range(300)]
    write_rows(tmp_path / "cola/train.jsonl", rows)
    found = of(tmp_path)
    document = f"{TEN} " * 3000
    assert not found.occurs_in(document)
    assert found.occurs_in(f"{document} {TEN} 299 again")


# ---- suites


SUITE = """
tasks:
  names: {kind: tokens, text: words, label: tags, metric: span-f1}
  quiz: {kind: choice, text: passage, choices: answers, label: right, metric: accuracy}
  topics: {kind: multi-label, text: body, label: [sport, politics], metric: micro-f1}
"""


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text(SUITE)
    data = tmp_path / "data"
    tags = ["tag"] * 12
    write_rows(data / "names/train.jsonl", [{"words": SENTENCE.split(), "tags": tags}])
    answers = ["one two three four five six seven eight nine ten", "no"]
    row = {"passage": "p q", "answers": answers, "right": "r " * 12, "source": "s " * 12}
    write_rows(data / "quiz/validation.jsonl", [row])
    write_rows(data / "topics/train.jsonl", [{"body": f"{TEN} x", "sport": "l " * 12}])
    found = of(data, str(suite))
    assert found.occurs_in(f"So: {SENTENCE}"), "the words of a task are one text"
    assert found.occurs_in(answers[0].upper())
    assert found.occurs_in(f"{TEN} x")
    assert found.occurs_in("s " * 12), "any column"
    for label in ("tag", "r", "l"):
        assert not found.occurs_in(f"{label} " * 12)


@pytest.mark.parametrize(
    ("suite", "place", "row"),
    [
        ("superglue", "multirc/train", {"paragraph": SENTENCE, "label": 0}),
        ("superglue", "wsc.fixed/test", {"text": SENTENCE, "span1_text": "a"}),
        ("race", "high/test", {"article": "a", "options": ["b", SENTENCE], "answer": "A"}),
        ("swag", "regular/train", {"sent1": "a", "ending3": SENTENCE, "label": 0}),
        ("docs", "docs-order/validation", {"text": SENTENCE, "label": 0}),
        ("blimp", "anaphor", {**PAIR, "sentence_bad": SENTENCE}),
    ],
)
def test_every_suite(tmp_path: Path, suite: str, place: str, row: dict[str, object]) -> None:
    write_rows(tmp_path / f"{place}.jsonl", [row])
    assert of(tmp_path, suite).occurs_in(f"He wrote: {SENTENCE}")


def test_several_suites(tmp_path: Path, glue: Path) -> None:
    write_rows(tmp_path / "blimp/a.jsonl", [{**PAIR, "sentence_good": "w " * 10}])
    suites = [
        DownstreamConfig(data=str(glue)),
        DownstreamConfig(suite="blimp", data=str(tmp_path / "blimp")),
    ]
    found = Downstream(suites)
    assert found.occurs_in("w " * 10)
    assert found.occurs_in(SENTENCE)


def test_a_tilde_stands_for_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_rows(tmp_path / "pairs/a.jsonl", [PAIR])
    short = DownstreamConfig(suite="blimp", data="~/pairs")
    whole = DownstreamConfig(suite="blimp", data=str(tmp_path / "pairs"))
    assert short.absolute() == whole
    assert downstream_settings([short]) == downstream_settings([whole])
    own = DownstreamConfig(suite="~/my.yaml", data="hub").absolute()
    assert (own.suite, own.data) == (str(tmp_path / "my.yaml"), "hub")


def test_a_word_is_a_folder_of_glue_and_a_section_is_a_suite() -> None:
    def given(downstream: object) -> object:
        return CleanConfig.model_validate({"downstream": downstream}).downstream

    glue, blimp = DownstreamConfig(data="a"), DownstreamConfig(suite="blimp", data="b")
    assert given(None) is None
    assert given("a") == (glue,)
    assert given({"suite": "blimp", "data": "b"}) == (blimp,)
    assert given(["a", {"suite": "blimp", "data": "b"}]) == (glue, blimp)
    with pytest.raises(ValueError, match=r"name its data too: \{suite: my\.yaml, data: FOLDER\}"):
        CleanConfig.model_validate({"downstream": "my.yaml"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("3", "data.clean.downstream: must be a list such as"),
        ("{suite: glue}", "data.clean.downstream.0.data: is missing"),
        ("{data: a, words: 5}", "downstream.0.words: input should be greater than or equal to 10"),
        ("[a, {data: b, word: 13}]", "downstream.1.word: no such key; did you mean .*words"),
    ],
)
def test_wrong_settings_are_refused(given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tiny("crammed", f"data.clean.downstream={given}")


@pytest.mark.parametrize("suite", ["glue", "blimp"])
def test_settings_follow_the_content_and_name_no_folder(tmp_path: Path, suite: str) -> None:
    file = tmp_path / "cola/train.jsonl"
    data = str(file.parent if suite == "blimp" else tmp_path)
    config = CleanConfig(downstream=(DownstreamConfig(suite=suite, data=data),))
    write_rows(file, [{"sentence": SENTENCE}])
    before = settings_of(config)
    assert settings_of(config) == before
    assert str(tmp_path) not in json.dumps(before)
    assert CleanConfig.model_validate(before), "a manifest is read again"
    write_rows(file, [{"sentence": f"{SENTENCE} again"}])
    assert settings_of(config) != before


def test_settings_follow_the_columns_of_labels(tmp_path: Path) -> None:
    write_rows(tmp_path / "mine/train.jsonl", [{"a": SENTENCE, "b": TEN}])
    suite = tmp_path / "own.yaml"
    suites = (DownstreamConfig(suite=str(suite), data=str(tmp_path)),)
    config = CleanConfig(downstream=suites)
    found = []
    for text, label in ("ab", "ba"):
        suite.write_text(f"tasks: {{mine: {{text: {text}, label: {label}, metric: accuracy}}}}")
        found.append((settings_of(config), Downstream(suites).occurs_in(TEN)))
    assert found[0][0] != found[1][0]
    assert [has for _, has in found] == [False, True]


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "cola/train.jsonl"
    with pytest.raises(InputError, match="holds no task of suite glue"):
        of(tmp_path)
    write_rows(file, [{"sentence": "Too short to matter."}])
    with pytest.raises(InputError, match="suite glue has no text of 10 words"):
        of(tmp_path)
    file.write_text("{broken", "utf-8")
    with pytest.raises(InputError, match=r"train\.jsonl, line 1: not valid JSON"):
        of(tmp_path)
    file.write_text("[1]", "utf-8")
    with pytest.raises(InputError, match="record 1: cut off, or not an object"):
        of(tmp_path)
    with pytest.raises(InputError, match="no suite 'sueprglue': did you mean superglue"):
        of(tmp_path, "sueprglue")
    with pytest.raises(InputError, match="name it with --heldout"):
        of(tmp_path, "heldout")
    with pytest.raises(InputError, match="no BLiMP data at"):
        of(tmp_path / "none", "blimp")
