"""What vectors are worth: finding the next passage, and agreeing with people about pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.finetuning.engine import Numerics, predict
from crammed.evaluation.finetuning.vectors import encoded
from crammed.evaluation.scores.metrics import measure
from crammed.tasks.columns import TaskColumns
from crammed.tasks.layouts import open_file
from crammed.tasks.read import read_rows
from crammed.tasks.rows import Rows
from crammed.tasks.task import Task

TEXTS, SCORES = ("sentence1", "sentence2"), ("score", "label")
"""Columns of a file of pairs: of its texts, and of its ratings, of which it has one."""

Vectors = NDArray[np.float32]


def read_pairs(file: Path) -> Rows:
    """The rated pairs of texts in a file.

    Raises:
        InputError: there is none, it is of no known format, or a row lacks a column.
    """
    split = open_file(file)
    placed = list(split.records())
    if not placed:
        raise InputError(f"{file} holds no pairs: give each a row with two texts and a number")
    rating = next((name for name in SCORES if name in placed[0][1]), None)
    if rating is None:
        raise InputError(f"{file} has no column score or label: rate each pair with a number")
    values = {"name": "pairs", "kind": "regression", "text": TEXTS, "metric": ("spearman",)}
    task = Task.model_validate({**values, "label": (rating,)})
    return read_rows(split.shown, placed, TaskColumns(task, TEXTS, ()))


def vectors(
    model: nn.Module, backbone: Backbone, texts: Sequence[str], length: int, numerics: Numerics
) -> Vectors:
    """A vector for each text, [N, D]."""
    rows = encoded(backbone, [(text,) for text in texts], length, numerics.device)
    return predict(model, rows, numerics)


def scores(
    model: nn.Module,
    backbone: Backbone,
    heldout: Sequence[tuple[str, str]],
    pairs: Rows | None,
    length: int,
    numerics: Numerics,
    *,
    tuned: bool = False,
) -> dict[str, Any]:
    """The scores of an encoder's vectors.

    Args:
        tuned: whether its vectors were finite before it was tuned.

    Returns:
        ``retrieval``: see `retrieval`, None without held-out pairs; ``unrelated``: quantiles of the
        cosines of texts that do not belong together; ``spearman``: of cosines and ratings, in
        percent, None without pairs.

    Raises:
        InputError: a vector is not finite, or all ratings or all cosines of pairs are the same.
    """

    def unit(texts: Sequence[str]) -> Vectors:
        found = vectors(model, backbone, texts, length, numerics)
        if not np.isfinite(found).all():
            raise InputError(
                "tuning diverged, the vectors are no longer finite: try a larger --batch, or "
                "--dtype float32"
                if tuned
                else "the vectors of the model are not finite: name another encoder"
            )
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))

    values: dict[str, Any] = {"retrieval": None, "unrelated": None, "spearman": None}
    if len(heldout) > 1:
        cosines = unit([a for a, _ in heldout]) @ unit([b for _, b in heldout]).T
        values["retrieval"] = retrieval(cosines)
        apart = cosines[~np.eye(len(cosines), dtype=bool)]
        low, middle, high = np.quantile(apart, (0.05, 0.5, 0.95)).tolist()
        values["unrelated"] = {"5 %": low, "50 %": middle, "95 %": high}
    if pairs is not None:
        both = unit(list(chain.from_iterable(pairs.texts))).reshape(len(pairs.texts), 2, -1)
        cosines = (both[:, 0] * both[:, 1]).sum(-1)
        if min(np.ptp(cosines), np.ptp(pairs.labels)) == 0.0:
            raise InputError(
                "--pairs: all cosines or all ratings are the same, so there is no correlation: "
                "name a file with different pairs and ratings"
            )
        values["spearman"] = measure("spearman", cosines[:, None], pairs, ())
    return values


def retrieval(cosines: Vectors) -> dict[str, float]:
    """How well each row [N, N] finds its own column among all: recall@1 and MRR, in percent."""
    own = np.diagonal(cosines)[:, None]
    others = ~np.eye(len(cosines), dtype=bool)
    ranks = 1 + ((cosines >= own) & others).sum(1)  # ties count against it
    return {
        "among": len(cosines),
        "recall@1": 100 * float((ranks == 1).mean()),
        "mrr": 100 * float((1 / ranks).mean()),
    }
