"""Two models scored on the same rows: is the difference larger than chance explains?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crammed.evaluation.scores.bootstrap import (
    interval,
    interval_over,
    mean_measure,
    resampled_medians,
)
from crammed.evaluation.scores.metrics import Floats
from crammed.evaluation.scores.predictions import Integers, Outputs, predictions
from crammed.evaluation.scores.score import Json, means_over
from crammed.tasks.rows import Rows
from crammed.tasks.task import Metric, Suite


@dataclass(frozen=True)
class Difference:
    """Median of A minus median of B in percentage points.

    Attributes:
        value: on the actual rows.
        resampled: in every resample, [RESAMPLES].
        seeds: number of seeds of the model with fewer.
        same: whether both models' predictions agree on all rows, seed by seed.
    """

    value: float
    resampled: Floats
    seeds: int
    same: bool = False

    def json(self) -> Json:
        """``{"difference", "interval", "p"}``.

        ``p`` is the share of resamples in which the difference is 0 or has the opposite sign, a
        crude one-sided p-value. If either model has only one seed, the effect of another seed is
        unknown: ``p`` is None, and the interval covers rows alone, as ``interval_over`` says. If
        both models predict the same, both are None, and ``same`` is set.
        """
        if self.same:
            return {"difference": self.value, "interval": None, "p": None, "same": True}
        defined = self.resampled[np.isfinite(self.resampled)]
        p = 1.0
        if self.value and len(defined):
            p = float((defined * np.sign(self.value) <= 0).mean())
        found = {"difference": self.value, "interval": interval(defined)}
        return {**found, "p": p if self.seeds > 1 else None, **interval_over(self.seeds)}


def paired_difference(
    metrics: Sequence[Metric],
    a: Sequence[Outputs],
    b: Sequence[Outputs],
    rows: Rows,
    labels: Sequence[str],
    name: str,
    task: str,
) -> Difference:
    """Compare two models by their seeds' outputs for the same rows.

    Args:
        a: outputs of every seed of A; `b` those of B.
        name: the score's name, and `task` its task, see `resampled_medians`.

    Raises:
        ValueError: the score of a seed is undefined.
    """
    medians = [
        np.median([mean_measure(metrics, each, rows, labels) for each in outputs])
        for outputs in (a, b)
    ]
    resampled_a, resampled_b = resampled_medians(metrics, (a, b), rows, labels, name, task)
    return Difference(
        float(medians[0] - medians[1]),
        resampled_a - resampled_b,
        min(len(a), len(b)),
        _same_predictions(a, b, rows),
    )


def _same_predictions(a: Sequence[Outputs], b: Sequence[Outputs], rows: Rows) -> bool:
    """Whether A and B predict the same classes (values for regression), seed by seed."""
    if len(a) != len(b):
        return False

    def predicted(outputs: Outputs) -> Outputs | Integers:
        regression = outputs.shape[-1] == 1
        return outputs if regression else predictions(outputs, rows).guess

    return all(
        np.array_equal(predicted(one), predicted(other)) for one, other in zip(a, b, strict=True)
    )


def compare(
    suite: Suite,
    a: Mapping[str, Json],
    b: Mapping[str, Json],
    differences: Mapping[str, Difference],
    reasons: Mapping[str, str],
) -> list[Json]:
    """Every score that A or B has, then the means that both have.

    Args:
        a: A's scores as JSON, by name; `b` those of B.
        differences: of the scores that can be compared.
        reasons: why others cannot be compared, such as different data. A score that failed or that
            only one model has needs no reason.

    Returns:
        for each score ``{"name", "metric", "a", "b"}`` and what `Difference.json` returns (a mean
        has ``of`` instead of ``metric``), or ``{"name", "why"}`` if it cannot be compared.
    """
    entries: list[Json] = []
    for name in [*a, *(name for name in b if name not in a)]:
        if name in differences:
            entry = {"name": name, "metric": a[name]["metric"]}
            entry |= {"a": a[name]["median"], "b": b[name]["median"]}
            entries.append({**entry, **differences[name].json()})
        else:
            entries.append({"name": name, "why": _why_not(name, a, b) or reasons[name]})
    for name, of, _ in means_over(suite, differences):
        entry = {"name": name, "of": list(of)}
        for side, tasks in (("a", a), ("b", b)):
            entry[side] = float(np.mean([tasks[each]["median"] for each in of]))
        parts = [differences[each] for each in of]
        mean = Difference(
            entry["a"] - entry["b"],
            np.mean([part.resampled for part in parts], axis=0),
            min(part.seeds for part in parts),
            all(part.same for part in parts),
        )
        entries.append({**entry, **mean.json()})
    return entries


def untested(entry: Json) -> Json:
    """An entry of `compare` between models that were judged by different protocols.

    The resamples know nothing of the protocol, so an interval or p would test both at once.
    """
    if "why" in entry:
        return entry
    kept = {key: value for key, value in entry.items() if key not in ("interval_over", "same")}
    return {**kept, "interval": None, "p": None, "untested": "different protocols"}


def _why_not(name: str, a: Mapping[str, Json], b: Mapping[str, Json]) -> str | None:
    for side, tasks in (("A", a), ("B", b)):
        if name not in tasks:
            return f"{side} has no score"
        if "failed" in tasks[name]:
            return f"{side} failed: {tasks[name]['failed']}"
    if a[name]["rows"] != b[name]["rows"]:
        return "different numbers of rows"
    return None
