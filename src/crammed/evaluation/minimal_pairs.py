"""Tasks of kind minimal-pairs: is the acceptable sentence of a pair the likelier one, as in BLiMP?

Nothing is fine-tuned. Sentences are scored as in `crammed.evaluation.blimp`, by the model and by
the same model with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.evaluation.backbones.base import SparseMaskedLM
from crammed.evaluation.blimp import sentence_scores
from crammed.evaluation.scores.bootstrap import RESAMPLES, interval, interval_over
from crammed.evaluation.scores.score import failed_json
from crammed.evaluation.scores.table import left_out
from crammed.evaluation.suite import Scores, SuiteEvaluator
from crammed.keys import key
from crammed.tasks.read import read_pairs_of
from crammed.tasks.rows import Rows, TaskData
from crammed.tasks.task import PAIRS, Suite, Task

Json = dict[str, Any]
Right = NDArray[np.bool_]


def scores_of(
    evaluator: SuiteEvaluator,
    suite: Suite,
    tasks: Sequence[Task],
    data: Path | None,
    read: Mapping[str, TaskData],
) -> Scores:
    """The scores of tasks that are fine-tuned, as by `SuiteEvaluator.evaluate`, and of pairs.

    A task of pairs whose sentences the model cannot score has ``failed`` in place of a score.
    """
    folder, backbone, device = evaluator.folder, evaluator.backbone, evaluator.numerics.device
    tuned = [task.name for task in tasks if task.kind != PAIRS]
    scores = evaluator.evaluate(suite, tuned, data, read) if tuned else folder.scores(suite.name)
    pairs = [task for task in tasks if task.kind == PAIRS]
    if not pairs:
        return scores
    models = {"": cache(partial(backbone.masked_lm, device))}  # loaded once, and only if needed
    if evaluator.untrained:
        models[", untrained"] = cache(partial(backbone.untrained_masked_lm, device))
    for task in pairs:
        found = read_pairs_of(task, data, suite)
        for name in task.numbers:
            scores["tasks"].pop(name, None)
        for words in left_out(task, found):
            evaluator.progress.line(f"note  {task.name}: {words}")
        for name, rows in found.items():
            try:
                right = [_right(evaluator, rows, name + of, get()) for of, get in models.items()]
            except InputError as error:
                scores["tasks"][name] = failed_json(task, name, str(error))
                continue
            scores["tasks"][name], resampled = pairs_json(task, name, rows, right)
            folder.save_resampled(suite.name, name, resampled)
    return evaluator.save(suite, scores)


def _right(evaluator: SuiteEvaluator, rows: Rows, title: str, model: SparseMaskedLM) -> Right:
    """Whether the good sentence of each pair has the higher score, [N]."""
    sentences = [sentence for pair in rows.texts for sentence in pair]
    device, progress = evaluator.numerics.device, evaluator.progress
    found = sentence_scores(evaluator.backbone, sentences, device, progress, model, title)
    return found[0::2] > found[1::2]


def pairs_json(
    task: Task, name: str, rows: Rows, right: Sequence[Right]
) -> tuple[Json, NDArray[np.float64]]:
    """The score of a task in the form of `crammed.evaluation.scores.score.score_json`.

    It is the mean over groups of the share of pairs that are right, or the share if there are no
    groups. Intervals resample the pairs of each group.

    Args:
        right: [N] of the model and, if it was scored, of the untrained one.

    Returns:
        the score, with the shares of ``groups`` and the number of rows ``skipped``, if there are
        some; and its resamples, [R].
    """
    labels = np.array(rows.groups or [""] * len(rows))
    groups = [np.flatnonzero(labels == group) for group in sorted({*labels.tolist()})]
    draw = np.random.default_rng(key(0, f"pairs/{task.name}/{name}"))
    means = np.zeros((len(right), RESAMPLES))
    for members in groups:
        for n in range(RESAMPLES):
            drawn = draw.choice(members, len(members))
            means[:, n] += [100 * each[drawn].mean() / len(groups) for each in right]
    values = [100 * float(np.mean([each[g].mean() for g in groups])) for each in right]
    found = [
        {"seeds": [value], "median": value, "spread": 0.0, **interval_over(1)} for value in values
    ]
    score: Json = {"metric": "accuracy", "kind": task.kind, **found[0], "also": {}}
    score["interval"] = interval(means[0])
    if len(right) > 1:
        score["untrained"] = {**found[1], "interval": interval(means[1])}
        score["gain"] = interval(means[0] - means[1])
    split = task.numbers[name].key
    official = task.rows.get(split)
    score |= {"rows": {split: len(rows)}, "official": official and official == len(rows), "cut": {}}
    if score["official"] is False:
        score["official_rows"] = {split: official}
    if rows.skipped:
        score["skipped"] = {split: rows.skipped}
    if rows.groups:
        score["groups"] = {str(labels[g[0]]): 100 * float(right[0][g].mean()) for g in groups}
    return score, means[0]
