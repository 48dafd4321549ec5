"""Compares the arms of a study with its baseline: means, differences, and what they support.

Seeds are the unit: a run is one number. Each arm is compared with the baseline by Welch's t-test
(Welch 1947), which does not assume equal variances: a recipe that is stuck hardly varies at all.
Three seeds say little about an arm's variance, so the variance pooled over all arms of the study
enters each arm's with the weight of one more seed (moderated t-tests, Smyth 2004). Arms that are
still on the plateau of word frequencies do not enter that of the others. One study makes many
comparisons, so p-values are corrected for the number of arms by Holm's step-down method (Holm
1979), and intervals by Bonferroni (Dunn 1961), so that they hold simultaneously.
``benchmarks/study_power.py`` shows what this finds in studies like ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from crammed.study.result import RATES, Arm, StudyResult, is_loss

LEVEL = 0.05
"""Probability that a study without any differences finds one; intervals hold with 1 - `LEVEL`."""
POWER = 0.8
"""Probability of finding the smallest difference that a study is said to be able to see."""
GATE = 1.0
"""How many nats below the unigram cross-entropy the baseline must be before arms are judged."""

PRIOR = 1.0
"""Degrees of freedom that the pooled variance counts for in the variance of each arm."""
ENOUGH = 20
"""The pooled variance counts for less if the other arms have fewer degrees of freedom than this."""


def compare_arms(study: StudyResult, measures: Sequence[str] = RATES) -> list[dict[str, Any]]:
    """A row for every arm, the best first.

    Args:
        study: the result of a study at one budget.
        measures: what is compared, the first to sort by: losses in nats, bits per character, or
            scores in percent.

    Returns:
        ``{"arm", "seeds", "tokens", "seconds", MEASURE...}`` for each arm. Each measure that a run
        of the arm has is

        - its ``mean`` and standard ``deviation`` over seeds,
        - its ``difference`` from the baseline,
        - the ``interval`` of this difference, which holds for all arms at once with 95 %,
        - ``p``, two-sided and corrected over the arms, and ``p_alone``, which is not,
        - the ``verdict``: ``better`` or ``worse`` if p is below 5 %, else None.

        The last five are None for the baseline, and all but the difference if it or the arm has one
        seed, or if nothing varies. There is no verdict where `decidable` is False. If runs
        failed, ``failed`` is the first reason.
    """
    rows = [_row(name, arm, measures[0]) for name, arm in study.arms.items()]
    judged, slow = decidable(study) is not False, on_plateau(study)
    for measure in measures:
        values = {name: arm.values_of(measure) for name, arm in study.arms.items()}
        every, learned = _Pooled(values.values()), _of_learned(study, values)
        for row in rows:
            arm = row["arm"]
            base = values[study.baseline] if arm != study.baseline else []
            if own := values[arm]:
                row[measure] = _one(own, base, every if arm in slow else learned)
        _correct([row[measure] for row in rows if measure in row])
        for row in rows:
            if judged and measure in row:
                row[measure]["verdict"] = _verdict(row[measure], measure)
    sign = 1.0 if is_loss(measures[0]) else -1.0
    first = measures[0]
    return sorted(rows, key=lambda row: sign * row[first]["mean"] if first in row else math.inf)


def decidable(study: StudyResult) -> bool | None:
    """Whether the budget takes the baseline far enough below the unigram model to judge arms.

    Every recipe first learns word frequencies, and differences on that plateau show which arm
    leaves it first, not which is better. None if the study does not record the unigram
    cross-entropy, as older ones do not, or the baseline has no loss.
    """
    losses = study.arms[study.baseline].values_of(RATES[0])
    if study.unigram is None or not losses:
        return None
    return statistics.fmean(losses) <= study.unigram - GATE


def decidable_text(study: StudyResult) -> str:
    """A sentence that says whether arms can be judged, and why."""
    decided, base, unigram = decidable(study), study.baseline, study.unigram
    if unigram is None:
        return (
            "The unigram cross-entropy is not part of this result, so whether the budget is "
            "enough to judge arms was not checked."
        )
    if decided is None:
        return f"No run of the baseline {base} has finished, so arms cannot be judged yet."
    below = unigram - statistics.fmean(study.arms[base].values_of(RATES[0]))
    place = f"{abs(below):.2f} nats {'below' if below >= 0 else 'above'}"
    where = f"{base} ends {place} the unigram cross-entropy of {unigram:.3f}"
    if decided:
        words = f"Decidable at this budget: {where}; {GATE:g} is needed."
        if slow := on_plateau(study):
            words += f" Still on the plateau, so not comparable: {', '.join(slow)}."
        return words
    return f"Not decidable at this budget: {where}, but must end at least {GATE:g} below it."


def on_plateau(study: StudyResult) -> list[str]:
    """The names of the arms that have learned little more than word frequencies, sorted.

    They may be there even if the baseline is far enough below the unigram cross-entropy. Empty if
    the study does not record that, or if its arms have corpora of their own.
    """
    if study.unigram is None or study.main_measure() != RATES[0]:
        return []
    losses = {arm: each.values_of(RATES[0]) for arm, each in study.arms.items()}
    means = {arm: statistics.fmean(each) for arm, each in losses.items() if each}
    return sorted(arm for arm, mean in means.items() if mean > study.unigram - GATE)


def still_on_plateau(study: StudyResult) -> dict[str, list[str]]:
    """The arms that are still on the plateau at budgets whose baseline is not, by label."""
    parts = study.parts().items()
    slow = {label: on_plateau(part) for label, part in parts if decidable(part)}
    return {label: arms for label, arms in slow.items() if arms}


def smallest_difference(study: StudyResult, measure: str = RATES[0]) -> dict[str, Any] | None:
    """The smallest difference from the baseline that this study could have seen.

    Returns:
        ``{"difference", "deviation", "seeds"}``: the difference that, as the only one, is found
        significant with probability `POWER`, if the arm (with the usual number of ``seeds``) and
        the baseline have the ``deviation`` pooled over all arms. None without two seeds or
        variance.
    """
    arms = {name: arm.values_of(measure) for name, arm in study.arms.items()}
    pooled = _of_learned(study, arms)
    base = arms.pop(study.baseline)
    others = [values for values in arms.values() if len(values) > 1]
    if len(base) < 2 or not others or not pooled.variance:
        return None
    usual = statistics.median_low(map(len, others))
    groups = [(pooled.variance, count) for count in (usual, len(base))]
    error, freedom = pooled.error(*groups)
    size = _noncentrality(freedom, LEVEL / len(others))
    return {"difference": size * error, "deviation": math.sqrt(pooled.variance), "seeds": usual}


class _Pooled:
    """The variance within arms, pooled over a study, which moderates that of each arm.

    Attributes:
        variance: None if no arm has two seeds.
    """

    def __init__(self, arms: Iterable[list[float]]) -> None:
        several = [values for values in arms if len(values) > 1]
        squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
        self._freedom = sum(len(values) - 1 for values in several)
        self.variance = squares / self._freedom if self._freedom else None

    def error(self, *groups: tuple[float, int]) -> tuple[float, float]:
        """Standard error of a difference between two arms, and its degrees of freedom.

        Args:
            groups: variance and number of seeds of each of the two.
        """
        # Not below 0: arms on the plateau are not in the pool, but may be compared.
        rest = max(0, self._freedom - sum(seeds - 1 for _, seeds in groups))
        weight = PRIOR * min(1.0, rest / ENOUGH)
        parts = []
        for variance, seeds in groups:
            freedom = weight + seeds - 1
            joint = (weight * (self.variance or 0.0) + (seeds - 1) * variance) / freedom
            parts.append((joint / seeds, freedom))
        squared = sum(part for part, _ in parts)
        if squared == 0.0:
            return 0.0, 0.0
        return math.sqrt(squared), squared**2 / sum(part**2 / free for part, free in parts)


def _of_learned(study: StudyResult, values: Mapping[str, list[float]]) -> _Pooled:
    """The variance within the arms that are past the plateau, if the baseline is.

    Where an arm is about to leave the plateau, its seeds differ ten times as much as elsewhere,
    which says nothing about how much those of other arms do.
    """
    slow = on_plateau(study) if decidable(study) else []
    return _Pooled(each for arm, each in values.items() if arm not in slow)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the order given (Holm 1979)."""
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


def _row(name: str, arm: Arm, first: str) -> dict[str, Any]:
    """A row without its measures."""
    row: dict[str, Any] = {"arm": name, "seeds": len(arm.values_of(first))}
    if failed := [run.failed for run in arm.runs.values() if run.failed is not None]:
        row["failed"] = failed[0]
    for cost in ("tokens", "seconds"):
        if values := arm.values_of(cost):
            row[cost] = statistics.fmean(values)
    return row


def _one(values: list[float], base: list[float], pooled: _Pooled) -> dict[str, Any]:
    """Mean and deviation of an arm, and its difference from the baseline, not yet corrected.

    Until `_correct` replaces it, ``interval`` is the difference's standard error and its degrees of
    freedom.
    """
    one: dict[str, Any] = {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "difference": statistics.fmean(values) - statistics.fmean(base) if base else None,
        **dict.fromkeys(("interval", "p", "p_alone", "verdict")),
    }
    if min(len(values), len(base)) > 1:
        groups = [(statistics.variance(each), len(each)) for each in (values, base)]
        error, freedom = pooled.error(*groups)
        one["interval"] = (error, freedom) if error else None
    return one


def _correct(compared: Iterable[dict[str, Any]]) -> None:
    """Give the differences of one measure p-values and intervals that hold jointly.

    Holm's method may find a difference whose Bonferroni interval still holds 0; such an interval
    ends at 0, because the test has excluded what lies beyond (Guilbaud 2008).
    """
    from scipy.stats import t

    tested = [one for one in compared if one["interval"] is not None]
    if not tested:
        return
    error, freedom = np.array([one["interval"] for one in tested]).T
    difference = np.array([one["difference"] for one in tested])
    alone = (2.0 * t.sf(np.abs(difference) / error, freedom)).tolist()
    reach = error * t.isf(LEVEL / len(tested) / 2.0, freedom)
    ends = np.stack([difference - reach, difference + reach], 1).tolist()
    for one, p_alone, p, (low, high) in zip(tested, alone, holm(alone), ends, strict=True):
        if p < LEVEL:
            low, high = (max(0.0, low), high) if one["difference"] > 0.0 else (low, min(0.0, high))
        one |= {"interval": [low, high], "p": p, "p_alone": p_alone}


def _verdict(one: Mapping[str, Any], measure: str) -> str | None:
    if one["p"] is None or one["p"] >= LEVEL:
        return None
    return "better" if (one["difference"] < 0.0) == is_loss(measure) else "worse"


def _noncentrality(freedom: float, level: float) -> float:
    """The true difference, in standard errors, that a two-sided test finds with `POWER`."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.isf(level / 2.0, freedom))
    return float(brentq(lambda size: nct.sf(critical, freedom, size) - POWER, 0.0, 3.0 * critical))
