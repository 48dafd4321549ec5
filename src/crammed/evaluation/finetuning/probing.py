"""Probes: what a frozen encoder's vectors tell of labels, without fine-tuning it.

A text is the mean of the hidden states over its tokens, and two texts are u, v, |u - v| and u * v
(Conneau and Kiela 2018, SentEval). Every dimension has mean 0 and standard deviation 1 on the
training rows. A linear model or the nearest neighbours predict the labels; how strongly the first
is regularised, or how many the second are, is what does best on a fifth of the training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from torch import nn

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.finetuning.batches import EncodedSplit
from crammed.evaluation.finetuning.engine import Numerics, predict
from crammed.evaluation.finetuning.task import FinetuneTask, TokenizedSplit
from crammed.evaluation.finetuning.vectors import MeanOfTokens
from crammed.extras import import_extra
from crammed.tasks.folds import taken
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task, TaskKind

Vectors = NDArray[np.float32]
Outputs = NDArray[np.float64]
MOST_ROWS = 50_000
"""Training rows that a probe learns from; the vectors of all might not fit in memory."""


def refuse_unprobed(tasks: Sequence[Task], protocol: Protocol) -> None:
    """Refuse tasks that have no vector for each text, if the protocol probes.

    Raises:
        InputError: there is one, or scikit-learn is not installed.
    """
    if protocol.probe is None:
        return
    import_extra("sklearn", "linear", "a probe")
    fit = [task.name for task in tasks if task.kind not in ("tokens", "choice")]
    for task in tasks:
        if task.name not in fit:
            mend = f"add --tasks {','.join(fit)}"
            if not fit:
                mend = "name another --protocol, or leave out finetune.probe in a run"
            raise InputError(f"task {task.name}: a probe does not take kind {task.kind}: {mend}")


def learned_rows(rows: Rows) -> Rows:
    """The training rows that a probe learns from: if there are too many, some drawn at random."""
    if len(rows) <= MOST_ROWS:
        return rows
    return taken(rows, np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS])


def probe(
    encoder: nn.Module,
    task: FinetuneTask,
    splits: Mapping[str, TokenizedSplit],
    method: str,
    pad: int,
    numerics: Numerics,
) -> dict[str, NDArray[np.float32]]:
    """Outputs for the rows of splits, shaped like those of a fine-tuned model.

    Args:
        encoder: (ids, mask, types) -> hidden states.
        splits: of sequences with one text each.
        method: ``linear`` or ``knn``.

    Raises:
        ValueError: the hidden states are not finite.
    """
    mean = MeanOfTokens(encoder).to(numerics.device)
    given, labels = _features(mean, task.train, pad, numerics), task.train.read()[1]
    middle, spread = given.mean(0), np.maximum(given.std(0), 1e-6)
    given = (given - middle) / spread
    predicted, choices = _METHODS[method]
    order = np.random.default_rng(0).permutation(len(given))
    end, rest = np.split(order, [max(1, len(order) // 5)])

    def loss(choice: float) -> float:
        outputs = predicted(task.kind, given[rest], labels[rest], given[end], task.outputs, choice)
        return _loss(task.kind, outputs, labels[end])

    with catch_warnings():
        simplefilter("ignore")  # of labels that no row has, and of steps that did not suffice
        best = min(choices, key=loss)
        found = {}
        for name, split in splits.items():
            rows = (_features(mean, split, pad, numerics) - middle) / spread
            outputs = predicted(task.kind, given, labels, rows, task.outputs, best)
            found[name] = outputs.astype(np.float32)
    return found


def _features(mean: nn.Module, split: TokenizedSplit, pad: int, numerics: Numerics) -> Vectors:
    """Features of each row, [R, D], or [R, 4 * D] of two texts."""
    tokens, _, _ = split.read()
    vectors = predict(mean, EncodedSplit(tokens, None, 1, pad, numerics.device), numerics)
    if not np.isfinite(vectors).all():
        raise ValueError("the encoder's hidden states are not finite")
    if split.choices == 1:
        return vectors
    u, v = vectors[::2], vectors[1::2]
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def _loss(kind: TaskKind, outputs: Outputs, labels: NDArray[np.float32]) -> float:
    """The share of wrong labels, or the mean squared error of values."""
    if kind == "regression":
        return float(np.square(outputs[:, 0] - labels).mean())
    if kind == "multi-label":
        return float(((outputs > 0.0) != labels).mean())
    return float((outputs.argmax(1) != labels).mean())


def linear_outputs(
    kind: TaskKind,
    given: Any,
    labels: NDArray[np.float32],
    wanted: Any,
    count: int,
    strength: float,
) -> Outputs:
    """What a linear model predicts of rows, shaped like the outputs of a fine-tuned model.

    Args:
        given, wanted: features, [R, F], of the training rows and of those to predict.
        count: outputs of a row.
        strength: inverse of the regularisation.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    if kind == "regression":
        ridge = Ridge(alpha=10.0 / strength, solver="lsqr").fit(given, labels)
        return np.asarray(ridge.predict(wanted), np.float64)[:, None]
    model = LogisticRegression(C=strength, max_iter=1000)
    if kind == "multi-label":
        several = OneVsRestClassifier(model).fit(given, labels)
        yes = np.asarray(several.predict_proba(wanted))[:, -count:]  # a single label has no as well
        return 2.0 * yes - 1.0  # above 0 for yes
    if len(found := np.unique(labels)) == 1:  # as in part of rows that are sorted
        outputs = np.zeros((wanted.shape[0], count))
        outputs[:, int(found[0])] = 1.0
        return outputs
    model.fit(given, labels)
    return _of_all_classes(model.decision_function(wanted), model.classes_, count)


def _of_all_classes(
    values: NDArray[np.float64], classes: NDArray[np.float32], count: int
) -> Outputs:
    """Outputs of all classes, of which some may not be among the training rows."""
    outputs = np.full((len(values), count), -1e9)
    columns = np.stack([-values, values], 1) if values.ndim == 1 else values
    outputs[:, classes.astype(int)] = columns
    return outputs


def _of_neighbours(
    kind: TaskKind,
    given: Vectors,
    labels: NDArray[np.float32],
    wanted: Vectors,
    outputs: int,
    choice: float,
) -> Outputs:
    """What the nearest rows by cosine have: the mean of values, or the share of each class."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    count = min(int(choice), len(given))
    settings: dict[str, Any] = {"n_neighbors": count, "metric": "cosine"}
    if kind == "classification":
        near = KNeighborsClassifier(**settings).fit(given, labels)
        return _of_all_classes(near.predict_proba(wanted), near.classes_, outputs)
    means = np.asarray(KNeighborsRegressor(**settings).fit(given, labels).predict(wanted))
    return 2.0 * means - 1.0 if kind == "multi-label" else means[:, None]


_METHODS = {
    "linear": (linear_outputs, (0.001, 0.01, 0.1, 1.0)),
    "knn": (_of_neighbours, (1.0, 5.0, 25.0)),
}
"""How each method predicts, and what it chooses from: strengths, or numbers of neighbours."""
