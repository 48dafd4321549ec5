"""A simple baseline: a linear model on the words of the texts, in seconds.

A text is its TF-IDF: weights of its words and pairs of neighbouring words, or of up to three
characters where words are not apart. Two texts are both, what they share, and how they differ. The
strength of the regularisation is that which does best on a fifth of the training rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from crammed.data.tokenization.losses import words_are_apart
from crammed.evaluation.finetuning.probing import linear_outputs
from crammed.evaluation.scores.bootstrap import mean_measure
from crammed.evaluation.scores.predictions import Outputs
from crammed.evaluation.scores.score import metrics_of
from crammed.extras import import_extra
from crammed.sentences import word_pattern
from crammed.tasks.folds import parts_of, taken
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import Task

MOST_ROWS, MOST_FEATURES = 50_000, 100_000
_MOST_SCORES = 100_000_000
"""Labels times rows that they are learned from."""
_MOST_COEFFICIENTS = 10_000_000
"""Labels times features, for each of which the solver keeps 25 numbers: 2 GB."""
_FEWEST = 100
"""Rows and features that are used however many labels there are."""
_STRENGTHS = (1.0, 10.0, 100.0)
_LOOKED_AT = 200
"""Texts that decide whether words are apart."""
FEATURES = "characters of very long words"
"""How features are made: scores of an earlier version, which made them otherwise, do not count."""


def linear_scores(task: Task, data: TaskData) -> dict[str, float]:
    """The linear model's score on each labelled split, in percent; none for kind tokens.

    It is trained on at most `MOST_ROWS` training rows, on fewer if there are thousands of labels. A
    score that is undefined is left out, and so are all if no text has a word.

    Raises:
        InputError: scikit-learn is not installed.
    """
    if task.kind == "tokens":
        return {}
    import_extra("sklearn", "linear", "TF-IDF with a linear model")
    try:
        outputs = _fitted(task, data)
    except ValueError:  # nothing to weigh
        return {}
    scores = {n: _score(task, n, data, outputs[n], rows) for n, rows in data.scored.items()}
    return {name: score for name, score in scores.items() if np.isfinite(score)}


def _fitted(task: Task, data: TaskData) -> dict[str, Outputs]:
    """Outputs of all scored rows, by name of the score; with folds, by models of other parts."""
    if data.folds:
        (name,) = data.scored
        parts = [*parts_of(data)]
        found = [
            _fitted(task, replace(data, train=part.train, scored={name: part.rows}, folds=0))[name]
            for part in parts
        ]
        order = np.argsort(np.concatenate([part.places for part in parts]))
        return {name: np.concatenate(found)[order]}
    # At random, since many sets of data are sorted by label.
    most = min(MOST_ROWS, max(_FEWEST, _MOST_SCORES // data.outputs))
    train = taken(data.train, np.random.default_rng(0).permutation(len(data.train))[:most])
    vectorizer = _vectorizer(train, data.outputs)
    vectorizer.fit([text for texts in train.texts for text in texts])
    first = next(iter(data.scored))
    cut = len(train) - max(1, len(train) // 5)
    end = taken(train, np.arange(cut, len(train)))
    given, begin = _features(vectorizer, train), cut * train.choices
    known, held, labels = given[:begin], given[begin:], train.labels
    with catch_warnings():
        simplefilter("ignore")  # of labels that no row has, and of steps that did not suffice
        judged = {
            strength: _score(
                task, first, data, _outputs(task, data, known, labels[:cut], held, strength), end
            )
            for strength in _STRENGTHS
        }
        best = max(_STRENGTHS, key=lambda strength: judged[strength])
        return {
            name: _outputs(task, data, given, labels, _features(vectorizer, rows), best)
            for name, rows in data.scored.items()
        }


def _score(task: Task, name: str, data: TaskData, outputs: Outputs, rows: Rows) -> float:
    try:
        return mean_measure(metrics_of(task, name), outputs, rows, data.labels)
    except ValueError:  # undefined
        return -np.inf


def _vectorizer(rows: Rows, outputs: int = 1) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    times = outputs * (4 if len(rows.texts[0]) == 2 else 1)  # as in `_features`
    most = min(MOST_FEATURES, max(_FEWEST, _MOST_COEFFICIENTS // times))
    sample = "\n".join(text for texts in rows.texts[:_LOOKED_AT] for text in texts)
    kind: dict[str, Any] = {"token_pattern": word_pattern(), "ngram_range": (1, 2)}
    if not words_are_apart(sample):
        kind = {"analyzer": "char", "ngram_range": (1, 3)}
    return TfidfVectorizer(sublinear_tf=True, max_features=most, dtype=np.float32, **kind)


def _features(vectorizer: Any, rows: Rows) -> Any:
    """Features of each sequence, sparse [R * C, F]."""
    from scipy.sparse import hstack

    columns = [vectorizer.transform(column) for column in zip(*rows.texts, strict=True)]
    if len(columns) == 1:
        return columns[0]
    one, other = columns
    shared = one.multiply(other)
    return hstack([one, other, shared, abs(one - other), shared.sum(1)], format="csr")


def _outputs(
    task: Task,
    data: TaskData,
    given: Any,
    labels: NDArray[np.float32],
    wanted: Any,
    strength: float,
) -> Outputs:
    """Outputs for the features `wanted`, shaped like those of a fine-tuned model."""
    from sklearn.linear_model import LogisticRegression

    if task.kind != "choice":
        return linear_outputs(task.kind, given, labels, wanted, data.outputs, strength)
    choices = data.train.choices
    model = LogisticRegression(C=strength, max_iter=1000)  # of each answer: is it the right one?
    right = np.arange(given.shape[0]) % choices
    model.fit(given, right == np.repeat(labels, choices))
    return np.asarray(model.decision_function(wanted)).reshape(-1, choices)
