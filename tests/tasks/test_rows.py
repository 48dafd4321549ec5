from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crammed.errors import InputError
from crammed.tasks.read import read_task, tasks_in
from crammed.tasks.task import load_suite
from support.samples import FORMATS
from support.tasks import TWO, Rows, read, read_mine, refusal, row, suite_of
from support.text import write_rows


def test_the_suite_of_small_encoders_reads_the_layout_in_the_documents(tmp_path: Path) -> None:
    pair = {"sentence1": "one", "sentence2": "two"}
    words = {"tokens": ["a", "b"], "upos": ["NOUN", "VERB"], "deprel": ["nsubj", "root"]}
    relations = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    folders: dict[str, tuple[str, Rows]] = {
        "sst2": ("validation", [{"sentence": "one", "label": n} for n in range(2)]),
        "subj": ("test", [{"sentence": "one", "label": n} for n in range(2)]),
        "trec": ("test", [{"sentence": "one", "label": name} for name in ("ENTY", "NUM")]),
        "sick": ("test", [{**pair, "score": n, "label": x} for n, x in enumerate(relations)]),
        "stsb": ("validation", [{**pair, "label": n / 2} for n in range(3)]),
        "qnli": ("validation", [{"question": "?", "sentence": "!", "label": n} for n in range(2)]),
        "mnli": (
            "validation_matched",
            [{"premise": "one", "hypothesis": "two", "label": n} for n in range(3)],
        ),
        "ewt": ("test", [words]),
    }
    for number, (name, (scored, rows)) in enumerate(folders.items()):
        for split in ("train", scored):
            write_rows(tmp_path / name / f"{split}.jsonl{'' if number % 2 else '.gz'}", rows)
    suite = load_suite("small")
    assert tasks_in(suite, tmp_path) == list(suite.tasks)
    for name, task in suite.tasks.items():
        found = read_task(task, tmp_path, suite)
        (scored_split,) = task.numbers.values()
        assert (list(found.scored), scored_split.split) == ([name], folders[task.folders[0]][0])
        assert len(found.train) == len(folders[task.folders[0]][1])
    documented = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text("utf-8")
    for name, task in suite.tasks.items():
        assert f"| `{name}` | `{task.folders[0]}` |" in documented


def test_classes_by_number(tmp_path: Path) -> None:
    data = read(tmp_path, [row("a", 1, idx=7), row("b", 0, idx=None)], labels=["no", "yes"])
    assert data.train.texts == [("a",), ("b",)]
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.labels.dtype == np.float32
    assert data.train.index == [7, 1]
    assert data.labels == ("no", "yes")
    assert (data.outputs, len(data.train), len(data.scored["mine"])) == (2, 2, 2)


def test_classes_by_name_are_found_in_training(tmp_path: Path) -> None:
    data = read(tmp_path, [row("a", "yes"), row("b", "no"), row("c", "yes")])
    assert data.labels == ("no", "yes")
    assert data.train.labels.tolist() == [1, 0, 1]
    assert "mine/validation.jsonl, line 1: label 'maybe' is not one of no, yes" in refusal(
        tmp_path, [row("a", "yes"), row("b", "no")], [row("c", "maybe")]
    )


@pytest.mark.parametrize(
    ("labels", "positive", "place"),
    [
        (("ham", "spam"), None, 1),
        (("ham", "spam"), "ham", 0),
        (("ham", "spam"), "spam", 1),
        ((0, 1), 0, 0),
        ((False, True), False, 0),
    ],
)
def test_the_positive_class_is_named_or_the_second(
    tmp_path: Path, labels: tuple[Any, Any], positive: Any, place: int
) -> None:
    rows = [row(str(label), label) for label in (*labels, *reversed(labels))]
    data = read(tmp_path, rows, metric="f1", positive=positive)
    assert data.train.positive == data.scored["mine"].positive == place
    names = [str(label).lower() for label in labels]
    for known in ([], names, [*labels]):
        said = refusal(tmp_path, rows, metric="f1", positive="eggs", labels=known)
        assert said == f"task mine: positive 'eggs' is not one of its labels: {', '.join(names)}"


def test_a_sample_of_the_training_rows_is_always_the_same(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": n % 2} for n in range(50)]
    data = read(tmp_path, rows, labels=2, most_rows=20)
    names = [text for (text,) in data.train.texts]
    assert (len(names), len(data.scored["mine"])) == (20, 50)
    assert names == sorted(names, key=lambda name: int(name[1:])) != [f"t{n}" for n in range(20)]
    assert list(data.train.labels) == [int(name[1:]) % 2 for name in names]
    assert read(tmp_path, rows, labels=2, most_rows=20).train.texts == data.train.texts
    more = read(tmp_path, rows, labels=2, most_rows=50)
    assert len(more.train) == 50
    assert more.sha256 != data.sha256  # so that a model trained on fewer rows is trained again


def test_pairs_and_templates(tmp_path: Path) -> None:
    rows = [row("a", 0, other="x", n=1), row("b", 1, other="y", n=2)]
    data = read(tmp_path, rows, text=["{n}: {other}", "text"], group="{n}/{other}")
    assert data.train.texts == [("1: x", "a"), ("2: y", "b")]
    assert data.train.groups == ["1/x", "2/y"]


def test_tables_hold_labels_as_text(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    table = FORMATS[".csv"]([row('a "b", c', "1"), row("two\nlines", "0")])
    for split in ("train", "validation"):
        (tmp_path / f"mine/{split}.csv").write_bytes(table)
    data = read_mine(tmp_path, suite_of(labels=2))
    assert data.train.texts == [('a "b", c',), ("two\nlines",)]
    assert data.train.labels.tolist() == [1, 0]


def test_several_labels_a_row(tmp_path: Path) -> None:
    rows = [row("a", ["x", "z"]), row("b", []), row("c", "y, x")]
    fields: dict[str, Any] = {"kind": "multi-label", "metric": "micro-f1"}
    data = read(tmp_path, rows, **fields)
    assert data.labels == ("x", "y", "z")
    assert data.train.labels.tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    rows = [{"text": "a", "x": 1, "y": "0"}, {"text": "b", "x": False, "y": "true"}]
    data = read(tmp_path, rows, label=["x", "y"], **fields)
    assert data.labels == ("x", "y")
    assert data.train.labels.tolist() == [[1, 0], [0, 1]]
    assert "line 1: column 'y': 2 is neither 0 nor 1" in refusal(
        tmp_path, [{"text": "a", "x": 1, "y": 2}], label=["x", "y"], **fields
    )
    assert "line 1: no column 'y' (it has: text, x)" in refusal(
        tmp_path, [{"text": "a", "x": 1}], label=["x", "y"], **fields
    )


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ([-1], "label -1 means that the row has none, but this split needs labels"),
        ("-1", "label '-1' means that the row has none, but this split needs labels"),
        (["x", ""], "label '' means that the row has none"),
        ([None], "label None means that the row has none"),
        (None, "label None means that the row has none"),
        (3, 'label 3 is not a list: write ["a", "b"], or [] for none'),
    ],
)
def test_a_missing_label_among_several_is_no_class(tmp_path: Path, label: Any, words: str) -> None:
    rows = [row("a", ["x"]), row("b", ["y"]), row("c", label)]
    said = refusal(tmp_path, rows, kind="multi-label", metric="micro-f1")
    assert f"train.jsonl, line 3: {words}" in said


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (None, "label None means that the row has none, but this split needs labels"),
        (3, 'label 3 is not a list: write ["a", "b"]'),
    ],
)
def test_words_need_a_list_of_labels(tmp_path: Path, label: Any, words: str) -> None:
    said = refusal(tmp_path, [row(["a"], label)], kind="tokens", metric="accuracy")
    assert said.endswith(f"train.jsonl, line 1: {words}")


PRINTED = ["['sport', 'politics']", "['sport' 'politics']", "['sport']", "[None, 1]", "[1 0]"]
"""Lists as pandas writes them into tables."""


@pytest.mark.parametrize("printed", [*PRINTED, "[['a'], ['b']]"])
def test_labels_that_python_printed_are_no_names(tmp_path: Path, printed: str) -> None:
    fields: dict[str, Any] = {"kind": "multi-label", "metric": "micro-f1"}
    said = "looks like a list that Python printed: write JSON lines, or the list as JSON"
    assert f"train.jsonl, line 2: {printed!r} {said}" in refusal(
        tmp_path, [row("a", "sport"), row("b", printed)], **fields
    )
    labels = ['["sport", "x, y"]', "[]", "sport, [PAD]", "[PAD], sport, [X]"]
    data = read(tmp_path, [row("a", label) for label in labels], **fields)
    assert data.labels == ("[PAD]", "[X]", "sport", "x, y")
    assert data.train.labels.tolist() == [[0, 0, 1, 1], [0] * 4, [1, 0, 1, 0], [1, 1, 1, 0]]


@pytest.mark.parametrize("printed", PRINTED)
def test_words_that_python_printed_are_no_words(tmp_path: Path, printed: str) -> None:
    """A sentence in brackets is one, and so are its tags."""
    fields: dict[str, Any] = {"kind": "tokens", "metric": "accuracy", "text": "words"}
    lines: list[dict[str, Any]]
    lines = [{"words": "The fox", "label": "DET NOUN"}, {"words": "a b", "label": printed}]
    said = "looks like a list that Python printed"
    assert f"train.jsonl, line 2: {printed!r} {said}" in refusal(tmp_path, lines, **fields)
    if "'" in printed:
        lines[1] = {"words": printed, "label": "NOUN NOUN"}
        assert f"train.jsonl, line 2: {printed!r} {said}" in refusal(tmp_path, lines, **fields)
    lines[1] = {"words": '["The", "fox runs"]', "label": '["DET", "NP"]'}
    lines += [
        {"words": '[ " Music " ]', "label": "[ Q NOUN Q ]"},
        {"words": "[PAD] fox [PAD]", "label": "[PAD] NOUN [PAD]"},
        {"words": "[1 0]", "label": "NP NP"},
    ]
    data = read(tmp_path, lines, **fields)
    assert data.labels == ("DET", "NOUN", "NP", "Q", "[", "[PAD]", "]")
    assert data.train.texts == [
        *(("The", "fox"), ("The", "fox runs"), ("[", '"', "Music", '"', "]")),
        *(("[PAD]", "fox", "[PAD]"), ("[1", "0]")),
    ]
    assert len(data.train.labels) == 2 + 2 + 5 + 3 + 2


def test_values(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"kind": "regression", "metric": "pearson"}
    data = read(tmp_path, [row("a", 2.5), row("b", "3"), row("c", -1)], **fields)
    assert data.train.labels.tolist() == [2.5, 3.0, -1.0]
    assert (data.labels, data.outputs) == ((), 1)
    for wrong, words in (
        (float("inf"), "is not a finite number"),
        ("x", "is not a number"),
        (float("nan"), "means that the row has none, but this split needs labels"),
        (None, "means that the row has none, but this split needs labels"),
        ("", "means that the row has none, but this split needs labels"),
    ):
        assert f"line 2: label {wrong!r} {words}" in refusal(
            tmp_path, [row("a", 1.0), row("b", wrong)], **fields
        )
    assert "every label is 1: there is nothing to learn" in refusal(
        tmp_path, [row("a", 1.0), row("b", 1.0)], **fields
    )


def test_words_and_their_labels(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"kind": "tokens", "metric": "span-f1", "text": "words"}
    rows: Rows = [
        {"words": ["Ada", "Lovelace", "wrote"], "label": ["B-PER", "I-PER", "O"]},
        {"words": "She did", "label": "O O"},
    ]
    data = read(tmp_path, rows, **fields)
    assert data.labels == ("B-PER", "I-PER", "O")
    assert data.train.texts == [("Ada", "Lovelace", "wrote"), ("She", "did")]
    assert data.train.labels.tolist() == [0, 1, 2, 2, 2]
    assert len(data.train) == 2
    numbered = [{"words": ["a", "b", "c"], "label": [1, -100, 0]}]
    data = read(tmp_path, numbered, labels=["O", "B-X"], **fields)
    assert data.train.labels.tolist() == [1, -1, 0]
    data = read(tmp_path, [*rows, {"words": ["a", "b"], "label": ["", "O"]}], **fields)
    assert data.labels == ("B-PER", "I-PER", "O")
    assert data.train.labels.tolist() == [0, 1, 2, 2, 2, -1, 2]
    for label in ("1.0 -100.0 0.0 -1.0", "1 -100 0 -1"):  # as tables hold them
        as_text = [{"words": "a b c d", "label": label}]
        data = read(tmp_path, as_text, kind="tokens", metric="accuracy", text="words")
        assert data.labels == ("0", "1")
        assert data.train.labels.tolist() == [1, -1, 0, -1]
    data = read(
        tmp_path, as_text, labels=["-1", "0", "1"], kind="tokens", metric="accuracy", text="words"
    )
    assert data.train.labels.tolist() == [2, -1, 1, 0]
    assert "line 1: 2 words, but 1 label" in refusal(
        tmp_path, [{"words": ["a", "b"], "label": ["O"]}], **fields
    )
    assert "line 1: column 'words' holds no words" in refusal(
        tmp_path, [{"words": "", "label": ["O"]}], **fields
    )
    assert "span-f1 needs labels O, B-... and I-..., not '0'" in refusal(
        tmp_path, numbered, **fields
    )
    assert "no row has a label" in refusal(
        tmp_path, [{"words": ["a"], "label": [-100]}], labels=["O", "B-X"], **fields
    )


def test_choices_from_columns_and_from_a_list(tmp_path: Path) -> None:
    rows = [row("a", 1, x="p", y="q", q="Why"), row("b", 0, x="r", y="s", q="How")]
    fields: dict[str, Any] = {"kind": "choice", "choices": ["{q} {x}", "y"]}
    data = read(tmp_path, rows, **fields)
    assert data.train.texts == [("a", "Why p"), ("a", "q"), ("b", "How r"), ("b", "s")]
    assert data.train.labels.tolist() == [1, 0]
    assert (data.train.choices, len(data.train), data.outputs) == (2, 2, 1)
    assert data.labels == ("0", "1")
    listed = [row("a", "B", all=["p", "q", "r"]), row("b", "C", all=["s", "t", "u"])]
    fields = {"kind": "choice", "choices": "all", "choice_text": "So {choice}"}
    fields["labels"] = ["A", "B", "C"]
    data = read(tmp_path, listed, **fields)
    assert data.train.texts[:3] == [("a", "So p"), ("a", "So q"), ("a", "So r")]
    assert data.train.labels.tolist() == [1, 2]
    fewer = [row("b", "A", all=["s", "t"])]
    assert "validation.jsonl, line 1: 2 answers, but other rows have 3" in refusal(
        tmp_path, listed, fewer, **fields
    )
    assert "train.jsonl, line 1: 2 answers, but the task names 3 labels" in refusal(
        tmp_path, fewer, **fields
    )
    assert "column 'all' holds a str, not a list of texts" in refusal(
        tmp_path, [row("a", "A", all="p q")], **fields
    )
    assert "holds fewer than two answers" in refusal(tmp_path, [row("a", "A", all=["p"])], **fields)


@pytest.mark.parametrize("number", [0, "1", 1.0, True])
@pytest.mark.parametrize("kind", ["classification", "multi-label", "tokens"])
def test_numbers_are_those_of_names_only_if_these_were_listed(
    tmp_path: Path, kind: str, number: Any
) -> None:
    fields: dict[str, Any] = {"kind": kind, "metric": "accuracy"}
    text, listed = (["a"] if kind == "tokens" else "a"), kind != "classification"
    names = [row(text, [name] if listed else name) for name in ("spam", "ham")]
    numbers = [row(text, [number] if listed else number)]
    said = refusal(tmp_path, names, numbers, **fields)
    assert f"validation.jsonl, line 1: label {number!r} is not one of ham, spam; if" in said
    assert "list them in `labels` in the order of their numbers" in said
    data = read(tmp_path, names, numbers, labels=["spam", "ham"], **fields)
    place = [0, 1][int(number)]
    expected = [[place == 0, place == 1]] if kind == "multi-label" else [place]
    assert data.scored["mine"].labels.tolist() == expected


@pytest.mark.parametrize("train", [(False, True), ("FALSE", "TRUE"), (0, 1), ("0.0", "1.0")])
@pytest.mark.parametrize("scored", [(False, True), (0, 1), ("0", "1")])
def test_false_is_0_and_true_is_1(
    tmp_path: Path, train: tuple[Any, Any], scored: tuple[Any, Any]
) -> None:
    before, after = ([row("a", each) for each in some] for some in (train, scored))
    data = read(tmp_path, before, after)
    assert data.scored["mine"].labels.tolist() == [0, 1]
    said = refusal(tmp_path, [row("a", 1), row("b", 2)], [row("a", True)])
    assert "label True is not one of 1, 2" in said


@pytest.mark.parametrize("form", [int, str, float, lambda n: f"{n}.0"])
def test_minus_one_is_a_class_where_it_is_named(tmp_path: Path, form: Any) -> None:
    rows = [row("a", form(-1)), row("b", form(0)), row("c", form(1))]
    data = read(tmp_path, rows, labels=[-1, 0, 1])
    assert data.train.labels.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="if -1 is a class, name all classes in `labels`"):
        read(tmp_path, rows)
    assert read(tmp_path, rows, kind="regression", metric="pearson").train.labels.tolist() == [
        *(-1.0, 0.0, 1.0)
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": "a"}, "no column 'label' (it has: text)"),
        ({"text": "a", **{f"c{n}": 0 for n in range(20_000)}}, "no column 'label' (it has: text, "),
        (row(3), "column 'text' holds a number, not text"),
        (row("a", 2), "label 2 is not one of 0, 1"),
        (row("a", 0.5), "label 0.5 is neither a name nor a whole number"),
        (row("a", [1]), "label [1] is neither a name"),
        (row("a", -1), "label -1 means that the row has none, but this split needs labels"),
        (row("a", None), "label None means that the row has none"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_wrong_row_is_named(
    tmp_path: Path, wrong: dict[str, Any], words: str, split: str
) -> None:
    both = {"train": TWO, "validation": TWO, split: [*TWO, wrong]}
    said = refusal(tmp_path, both["train"], both["validation"], labels=2)
    assert f"mine/{split}.jsonl, line 3: {words}" in said
    assert len(said) < 1000


def test_many_labels_are_read_in_no_time_and_too_many_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row("a", f"label {n:05d}") for n in range(30_000)]
    began = time.process_time()
    assert read(tmp_path, rows).train.labels.tolist() == [*range(30_000)]
    assert time.process_time() - began < 5.0  # looking through all names would take 15 s
    refused = refusal(tmp_path, rows, rows, metric="f1")
    assert "metric f1 takes two labels, not label 00000, label 00001, " in refused
    assert len(refused) < 300
    monkeypatch.setattr("crammed.tasks.read.MOST_LABELS", 999)
    assert "line 1000: column 'label' has more than 999 labels" in refusal(tmp_path, rows, rows)
