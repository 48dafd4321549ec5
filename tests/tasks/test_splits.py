"""Splits of tasks: what they lack, which of them count, and what identifies them."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.tasks.read import read_task, splits_in, tasks_in
from crammed.tasks.task import SplitSpec, load_suite, pieces, suite_names
from support.tasks import TWO, read, read_mine, refusal, row, suite_of
from support.text import write_rows


@pytest.mark.parametrize("without", [row(None, "c"), {"label": "c"}, {}])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_without_text_are_skipped_and_counted(
    tmp_path: Path, without: dict[str, Any], split: str
) -> None:
    """Their labels are no classes."""
    good = [row("a", "x"), row("b", "y")]
    both = {"train": good, "validation": good, split: [without, *good, without]}
    data = read(tmp_path, both["train"], both["validation"], metric="f1")
    assert data.labels == ("x", "y")
    for name, rows in (("train", data.train), ("validation", data.scored["mine"])):
        assert rows.texts == [("a",), ("b",)]
        assert rows.labels.tolist() == [0, 1]
        assert rows.skipped == (2 if name == split else 0)
    only = {"train": good, "validation": good, split: [without] * 3}
    said = refusal(tmp_path, only["train"], only["validation"], metric="f1")
    assert said.startswith(f"no row has text: {tmp_path}/mine/{split}.jsonl, line 1: ")
    assert ("column 'text' holds nothing" if "text" in without else "no column 'text'") in said


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({"text": ["text", "{b} and {c}"]}, ("text", "b", "c")),
        ({"kind": "tokens", "text": "words", "label": "tags"}, ("words",)),
        ({"kind": "choice", "choices": ["{b}", "{c}"]}, ("text", "b", "c")),
        ({"kind": "choice", "choices": "ends", "choice_text": "{b} {choice}"}, ("ends", "b")),
    ],
)
def test_text_may_be_missing_in_any_of_its_columns(
    tmp_path: Path, fields: dict[str, Any], columns: tuple[str, ...]
) -> None:
    more = {"b": "b", "c": "c", "ends": ["d", "e"], "words": ["f"], "choice": None}
    rows = [row("a", n, tags=[n], **more) for n in (0, 1)]
    broken = [{**rows[0], column: None} for column in columns]
    data = read(tmp_path, [*broken, *rows], **fields)
    assert (len(data.train), data.train.skipped) == (2, len(columns))


def test_every_row_to_predict_needs_text(tmp_path: Path) -> None:
    suite, test = suite_of(test={"A.tsv": "test"}), [row("a"), row(None)]
    with pytest.raises(InputError, match=r"test.jsonl, line 2: column 'text' holds nothing"):
        read_mine(tmp_path, suite, train=TWO, validation=TWO, test=test)


def test_a_wrong_row_is_named_while_labels_are_collected(tmp_path: Path) -> None:
    assert "train.jsonl, line 2: label [1] is neither a name" in refusal(
        tmp_path, [row("a", 0), row("b", [1])]
    )


def test_splits_with_nothing_to_learn_or_score_are_refused(tmp_path: Path) -> None:
    same = [row("a", 1), row("b", 1)]
    assert "train.jsonl: every label is yes: there is nothing to learn" in refusal(
        tmp_path, same, labels=["no", "yes"]
    )
    nothing = [row("a", []), row("b", "")]
    assert "train.jsonl: no row has a label" in refusal(
        tmp_path, nothing, kind="multi-label", metric="micro-f1"
    )
    assert "train.jsonl holds no rows" in refusal(tmp_path, [], labels=2)
    assert "validation.jsonl holds no rows" in refusal(tmp_path, TWO, [])
    assert "train.jsonl holds no rows" in refusal(tmp_path, [], kind="choice", choices="all")


@pytest.mark.parametrize(
    ("fields", "labels", "said"),
    [
        ({"metric": "f1"}, ["b", "b"], "every label is b, so f1 is undefined: add rows, or name"),
        ({"metric": ["accuracy", "matthews"]}, ["a"], "every label is a, so matthews is undefined"),
        ({"metric": "accuracy"}, ["a"], None),
        ({"metric": "macro-f1", "also": "matthews"}, ["a"], None),
        ({"kind": "regression", "metric": "pearson"}, [2.5], "every label is 2.5, so pearson is"),
        ({"kind": "regression", "metric": "spearman"}, [3, 3], "every label is 3, so spearman is"),
        ({"kind": "regression", "metric": "pearson"}, [3, 4], None),
        ({"kind": "regression", "metric": "pearson"}, [1e9, 1e9 + 64], None),
        (
            {"kind": "regression", "metric": "pearson"},
            [1e9, 1e9 + 20],
            "labels from 1000000000 to 1000000020 differ by too little for numbers in 32 bits",
        ),
        ({"kind": "tokens", "metric": "accuracy"}, [[-100], [-1]], "no row has a label"),
        ({"kind": "tokens", "metric": "span-f1"}, [["O"], [-1]], "every label is O, so span-f1 is"),
        ({"kind": "tokens", "metric": "span-f1"}, [["B-x"]], None),
        ({"kind": "tokens", "metric": "accuracy"}, [["O"]], None),
        ({"kind": "multi-label", "metric": "macro-f1"}, [[]], None),
    ],
)
def test_scored_rows_that_no_prediction_gives_a_score_are_refused(
    tmp_path: Path, fields: dict[str, Any], labels: list[Any], said: str | None
) -> None:
    """Before anything is trained; they had been found in the end."""
    train: dict[str, list[Any]] = {
        **{"classification": ["a", "b"], "multi-label": [["a"], ["b"]]},
        **{"regression": [1.0, 2.0], "tokens": [["O"], ["B-x"]]},
    }
    kind = fields.get("kind", "classification")
    text = ["a"] if kind == "tokens" else "a"
    known, scored = ([row(text, each) for each in some] for some in (train[kind], labels))
    if said is None:
        assert len(read(tmp_path, known, scored, **fields).scored["mine"]) == len(labels)
    else:
        assert f"mine/validation.jsonl: {said}" in refusal(tmp_path, known, scored, **fields)


def test_damage_is_named_with_its_line(tmp_path: Path) -> None:
    suite = suite_of()
    read_mine(tmp_path, suite, train=TWO, validation=TWO)
    with (tmp_path / "mine/train.jsonl").open("a") as file:
        file.write('{"text": ')
    with pytest.raises(InputError, match=r"mine/train.jsonl, line 3: not valid JSON"):
        read_mine(tmp_path, suite)
    (tmp_path / "mine/train.jsonl").unlink()
    whole = gzip.compress(json.dumps(row()).encode() * 100)
    (tmp_path / "mine/train.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(InputError, match=r"train.jsonl.gz cannot be read to its end"):
        read_mine(tmp_path, suite)


def test_scored_splits_that_are_missing_are_left_out_unless_all_are(tmp_path: Path) -> None:
    suite = suite_of(scored={"a": "validation", "b": "other"}, labels=2)
    assert read_mine(tmp_path, suite, train=TWO, validation=TWO).scored.keys() == {"a"}
    suite = suite_of(scored={"b": "other"}, labels=2)
    with pytest.raises(InputError, match=r"task mine: .*mine has no other split, as .jsonl"):
        read_mine(tmp_path, suite)
    (tmp_path / "mine/train.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds no task of suite s, .* in folders mine"):
        tasks_in(suite, tmp_path)


def test_a_scored_split_may_have_its_own_columns_and_folder(tmp_path: Path) -> None:
    write_rows(tmp_path / "more/test.jsonl", [{"words": "c", "label": 1}])
    at = {"folder": "more", "split": "test", "text": "words"}
    suite = suite_of(scored={"n": at}, labels=2, rows={"train": 2, "more/test": 1})
    data = read_mine(tmp_path, suite, train=TWO)
    assert data.scored["n"].texts == [("c",)]


def test_test_splits_need_no_labels(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "test": {"Mine.tsv": "test"},
        "rows": {"train": 2, "validation": 2, "test": 9},
    }
    suite, test = suite_of(**fields), [{"text": "c"}, row("d", -1, idx=5)]
    data = read_mine(tmp_path, suite, train=TWO, validation=TWO, test=test)
    assert data.test["Mine.tsv"].texts == [("c",), ("d",)]
    assert np.isnan(data.test["Mine.tsv"].labels).all()
    assert data.test["Mine.tsv"].index == [0, 5]
    without = read_task(suite.tasks["mine"], tmp_path, suite, test=False)
    assert without.test == {}
    assert without.sha256 == data.sha256
    assert without.test_sha256 == {}
    other = read_mine(tmp_path, suite, test=[{"text": "d"}, {"text": "c"}])
    assert other.sha256 == data.sha256
    assert other.test_sha256 != data.test_sha256
    assert len(splits_in(suite, tmp_path)) == 3


def test_groups_may_be_numbers_and_are_for_scoring_alone(tmp_path: Path) -> None:
    rows = [row(text, number, g=number) for number, text in enumerate("ab")]
    for group, keys in (("g", ["0", "1"]), ("{text}{g}", ["a0", "b1"])):
        suite = suite_of(group=group, test={"Mine.tsv": "test"})
        data = read_mine(tmp_path, suite, train=rows, validation=rows, test=[{"text": "c"}])
        assert data.scored["mine"].groups == keys
        assert data.test["Mine.tsv"].groups == []
    assert "line 1: no column 'g'" in refusal(tmp_path, TWO, group="g")


def test_different_data_has_a_different_digest(tmp_path: Path) -> None:
    first = read(tmp_path, TWO).sha256
    assert read(tmp_path, TWO).sha256 == first
    assert read(tmp_path, TWO, [*TWO, row("c", 1)]).sha256 != first


def test_cells_between_tabs_are_other_data_where_they_may_be_quoted(tmp_path: Path) -> None:
    """Other files have the digests that they always had."""
    suite, folder = suite_of(), tmp_path / "mine"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.tsv").write_text('text\tlabel\n"a ""b"""\tx\nc\ty\n')
    plain = read_mine(tmp_path, suite)
    digest = sha256(folder / "train.tsv")
    assert plain.sha256 == hashlib.sha256(f"{digest}\n{digest}\n".encode()).hexdigest()
    for split in ("train", "validation"):
        (folder / f"{split}.tsv").rename(folder / f"{split}.csv")
    quoted = read_mine(tmp_path, suite)
    assert (plain.train.texts[0], quoted.train.texts[0]) == (('"a ""b"""',), ('a "b"',))
    assert quoted.sha256 != plain.sha256
    for split in ("train", "validation"):
        file = folder / f"{split}.csv"
        file.write_text(file.read_text().replace("\t", ","))
    digest = sha256(folder / "train.csv")
    commas = read_mine(tmp_path, suite)
    assert commas.sha256 == hashlib.sha256(f"{digest}\n{digest}\n".encode()).hexdigest()


def test_halves_of_characters_do_not_reach_a_tokenizer(tmp_path: Path) -> None:
    data = read(tmp_path, [row("a\ud83d", "x\ud83d", idx="i\ud83d"), row("b", "y")])
    for text in (data.train.texts[0][0], *data.labels, data.train.index[0]):
        text.encode()


def test_text_that_parquet_has_as_bytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    rows = [{"text": b"a", "label": b"no", "idx": b"i"}, {"text": b"b", "label": b"yes"}]
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mine" / f"{split}.parquet")
    data = read_mine(tmp_path, suite_of())
    assert data.train.texts == [("a",), ("b",)]
    assert data.labels == ("no", "yes")
    assert data.train.index == ["i", 1]


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_a_row_with_a_key_twice_is_refused(tmp_path: Path, form: str) -> None:
    suite = suite_of()
    read_mine(tmp_path, suite, train=TWO, validation=TWO)
    twice = form.format('{"text": "a", "label": 0, "label": 1}')
    (tmp_path / "mine" / "train.jsonl").write_text(twice)
    with pytest.raises(InputError, match=r" 1: 2 columns are named 'label'; rename or remove"):
        read_mine(tmp_path, suite)


@pytest.mark.parametrize("mark", ["\t", "\n", "\r"])
def test_a_table_that_cannot_hold_its_answers_is_refused(tmp_path: Path, mark: str) -> None:
    for named, known in ((f"i{mark}", "x"), ("i", f"x{mark}")):
        rows = [row("a", known), row("b", "y")]
        splits = {"train": rows, "validation": rows, "test": [row("c", idx=named)]}
        said = r"A.tsv cannot hold the label or idx .*: name it A.jsonl in the suite"
        with pytest.raises(InputError, match=said):
            read_mine(tmp_path, suite_of(test={"A.tsv": "test"}), **splits)
        read_mine(tmp_path, suite_of(test={"A.jsonl": "test"}), **splits)


@pytest.mark.parametrize("name", suite_names())
def test_every_built_in_task_reads_rows_of_its_columns(tmp_path: Path, name: str) -> None:
    suite = load_suite(name)
    for task in suite.tasks.values():
        for at in (SplitSpec(split="train"), *task.numbers.values(), *task.test.values()):
            templates = (*(at.text or task.text), task.group or task.text[0])
            if task.kind == "choice":
                listed = len(task.choices) == 1
                templates += (task.choice_text, *(() if listed else task.choices))
            columns = {column for each in templates for _, column in pieces(each) if column}
            rows: list[dict[str, Any]] = [dict.fromkeys(columns, f"text {n}") for n in range(3)]
            for number, each in enumerate(rows):
                label = task.labels[number % 2] if task.labels else number % 2
                each[task.label[0]] = [label, label] if task.kind == "tokens" else label
                if task.kind == "choice" and len(task.choices) == 1:
                    each[task.choices[0]] = list("pqrs")
            folder = tmp_path / (at.folder or task.folders[0])
            write_rows(folder / f"{at.split}.jsonl", rows)
        data = read_task(task, tmp_path, suite)
        assert data.scored.keys() == task.numbers.keys()
        assert data.test.keys() == task.test.keys()
        every = (data.train, *data.scored.values(), *data.test.values())
        assert {len(rows) for rows in every} == {3}
        words = 2 if task.kind == "tokens" else 1
        assert data.train.labels[::words].tolist() == [0, 1, 0]
