"""TF-IDF with a linear model: what anybody would try first."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from crammed.evaluation import linear
from crammed.evaluation.linear import linear_scores
from crammed.tasks.folds import taken
from crammed.tasks.rows import Rows, TaskData, Texts
from crammed.tasks.task import Task, TaskKind

WORDS = ["a", "red", "quiet", "old", "boat", "house", "garden", "river", "stone", "bread", "lamp"]
SIGNS = ("good", "bad", "odd")
METRICS: dict[TaskKind, str] = {
    "classification": "accuracy",
    "multi-label": "micro-f1",
    "regression": "pearson",
    "choice": "accuracy",
    "tokens": "accuracy",
}


def rows(kind: TaskKind, count: int, seed: int) -> Rows:
    """Rows whose label a word gives away."""
    draw = random.Random(seed)

    def text(sign: str) -> str:
        return " ".join([*draw.choices(WORDS, k=6), sign, *draw.choices(WORDS, k=3)])

    labels = [number % 3 for number in range(count)]
    if kind == "choice":
        texts: list[Texts] = [
            ("a question", text("right" if answer == label else "wrong"))
            for label in labels
            for answer in range(3)
        ]
        return Rows(texts, np.array(labels, np.float32), 3)
    values: Any = np.array(labels, np.float32)
    if kind == "multi-label":
        values = np.eye(3, dtype=np.float32)[labels]
    return Rows([(text(SIGNS[label]),) for label in labels], values)


def scores(kind: TaskKind, train: Rows, scored: Rows) -> dict[str, float]:
    task = Task.model_validate(
        {"name": "mine", "kind": kind, "text": "text", "metric": METRICS[kind]}
        | ({"choices": "ends"} if kind == "choice" else {})
    )
    labels = () if kind == "regression" else SIGNS
    return linear_scores(task, TaskData(train, {"mine": scored}, {}, labels, ""))


@pytest.mark.parametrize("kind", METRICS)
def test_it_learns_what_words_give_away(kind: TaskKind) -> None:
    found = scores(kind, rows(kind, 120, 1), rows(kind, 60, 2))
    assert found == {} if kind == "tokens" else found["mine"] > 95.0


def test_marks_belong_to_the_words_that_they_stand_in() -> None:
    """\u0905\u091a\u094d\u091b\u093e and \u0905\u091a\u094d\u091b\u0940 differ in a vowel sign."""
    words = ("\u0905\u091a\u094d\u091b\u093e", "\u0905\u091a\u094d\u091b\u0940")
    vectorizer = linear._vectorizer(Rows([(" ".join(words),)], np.zeros(1, np.float32)))
    assert vectorizer.build_analyzer()(" ".join(words)) == [*words, " ".join(words)]
    assert vectorizer.build_analyzer()("it's a-b c_d") == [
        *("it", "s", "a", "b", "c_d"),
        *("it s", "s a", "a b", "b c_d"),
    ]


def test_it_learns_nothing_from_words_that_say_nothing() -> None:
    train = rows("classification", 120, 1)
    blind = Rows(train.texts, np.roll(train.labels, 1))
    random.Random(3).shuffle(blind.texts)
    assert scores("classification", blind, rows("classification", 60, 2))["mine"] < 60.0


def chinese(draw: random.Random, label: int) -> str:
    return "".join([*draw.choices("的一是在人有我他这中", k=8), "好坏怪"[label], "了"])


def dna(draw: random.Random, label: int) -> str:
    weights = ((3, 1, 1, 1), (1, 3, 1, 1), (1, 1, 3, 1))
    return "".join(draw.choices("acgt", weights[label], k=60))


@pytest.mark.parametrize(("write", "least"), [(chinese, 95.0), (dna, 80.0)])
def test_text_without_spaces(write: Callable[[random.Random, int], str], least: float) -> None:
    """Also where each word is long, and occurs once."""

    def written(seed: int, count: int) -> Rows:
        draw = random.Random(seed)
        texts: list[Texts] = [(write(draw, n % 3),) for n in range(count)]
        return Rows(texts, np.arange(count, dtype=np.float32) % 3)

    assert scores("classification", written(1, 120), written(2, 60))["mine"] > least


def test_a_class_that_training_lacks_is_never_predicted() -> None:
    train, scored = rows("classification", 120, 1), rows("classification", 60, 2)
    two = [n for n in range(120) if n % 3 < 2]
    train = Rows([train.texts[n] for n in two], train.labels[two])
    assert 60.0 < scores("classification", train, scored)["mine"] < 70.0


def test_rows_that_are_sorted_by_class() -> None:
    """Those that choose the strength, or those before them, may be of one class alone."""
    train, scored = rows("classification", 120, 1), rows("classification", 60, 2)
    late = [
        Rows(each.texts, (np.arange(len(each)) >= 0.9 * len(each)).astype(np.float32))
        for each in (train, scored)
    ]
    assert scores("classification", *late)["mine"] > 80.0


def test_text_without_words_has_no_score() -> None:
    blank = [Rows([("?!",)] * 12, np.arange(12, dtype=np.float32) % 3) for _ in range(2)]
    assert scores("classification", *blank) == {}


def test_nobody_is_warned_of_labels_without_rows(recwarn: pytest.WarningsRecorder) -> None:
    train, scored = rows("multi-label", 120, 1), rows("multi-label", 60, 2)
    train.labels[:, 0] = 0.0
    assert "mine" in scores("multi-label", train, scored)
    assert not recwarn.list


def test_two_texts_are_compared() -> None:
    """Whether a pair shares its middle word: no single word tells."""
    draw = random.Random(5)

    def pairs(count: int) -> Rows:
        texts: list[Texts] = []
        for number in range(count):
            one, other = draw.sample(WORDS, 2)
            texts.append((f"see the {one}", f"see the {one if number % 2 else other}"))
        return Rows(texts, np.arange(count, dtype=np.float32) % 2)

    assert scores("classification", pairs(200), pairs(100))["mine"] > 95.0


@pytest.mark.parametrize("kind", [kind for kind in METRICS if kind != "tokens"])
def test_features_of_training_rows_are_made_once_whatever_is_fitted_to_them(
    kind: TaskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the rows that choose the strength are what these rows alone would have."""
    made = linear._features
    features, outputs = Mock(side_effect=made), Mock(side_effect=linear._outputs)
    monkeypatch.setattr(linear, "_features", features)
    monkeypatch.setattr(linear, "_outputs", outputs)
    scores(kind, rows(kind, 120, 1), rows(kind, 60, 2))
    (vectorizer, train), (_, scored) = (call.args for call in features.call_args_list)
    assert (len(train), len(scored)) == (120, 60)
    _, _, known, labels, held, _ = outputs.call_args_list[0].args
    begin, end = (taken(train, part) for part in np.split(np.arange(120), [96]))
    np.testing.assert_array_equal(labels, begin.labels)
    for found, part in ((known, begin), (held, end)):
        np.testing.assert_allclose(found.toarray(), made(vectorizer, part).toarray())
    assert [len(call.args[3]) for call in outputs.call_args_list] == [96, 96, 96, 120]


def test_of_too_many_rows_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first would be of few classes where the data is sorted by label."""
    train, scored = rows("classification", 120, 1), rows("classification", 60, 2)
    order = np.argsort(train.labels, kind="stable")
    train = Rows([train.texts[n] for n in order], train.labels[order])
    for most, least, largest in ((60, 95.0, 100.0), (2, 0.0, 70.0)):  # two rows, two classes
        monkeypatch.setattr(linear, "MOST_ROWS", most)
        assert least <= scores("classification", train, scored)["mine"] <= largest


@pytest.mark.parametrize(
    ("labels", "pairs", "features"),
    [(3, False, 20), (4, False, 15), (60, False, 5), (1, True, 15), (2, True, 7), (60, True, 5)],
)
def test_the_more_labels_the_fewer_features(
    labels: int, pairs: bool, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solver keeps both, many times over."""
    for name, value in (("MOST_FEATURES", 20), ("_MOST_COEFFICIENTS", 60), ("_FEWEST", 5)):
        monkeypatch.setattr(linear, name, value)
    texts = [text for (text,) in rows("classification", 120, 1).texts]
    some: list[Texts] = [(text, text) if pairs else (text,) for text in texts]
    vectorizer = linear._vectorizer(Rows(some, np.zeros(120, np.float32)), labels)
    assert len(vectorizer.fit(texts).vocabulary_) == features


def test_the_more_labels_the_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(side_effect=linear._features)
    monkeypatch.setattr(linear, "_features", made)
    monkeypatch.setattr(linear, "_MOST_SCORES", 330)
    scores("classification", rows("classification", 120, 1), rows("classification", 60, 2))
    assert [len(call.args[1]) for call in made.call_args_list] == [110, 60]
