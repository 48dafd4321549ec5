"""Compares the arms of a study with its baseline: means, differences, and what they support.

Seeds are the unit: a run is one number. Each arm is compared with the baseline by a t-test with
moderated variances (`moderation`). Arms that are still on the plateau of word frequencies do not
enter the variance of the others. One study makes many comparisons, so p-values are corrected for
the number of arms by Holm's step-down method (Holm 1979), and intervals by Bonferroni (Dunn 1961),
so that they hold simultaneously. With fewer than `FEWEST` seeds a difference is a lead: what to
look at next, without an interval, a p-value or a verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from crammed.extras import import_extra
from crammed.runs.longer import GATE
from crammed.study.findings.moderation import Numbers, differences, holm
from crammed.study.result import RATES, Arm, StudyResult, is_loss, means_of

LEVEL = 0.05
"""Probability that a study without any differences finds one; intervals hold with 1 - `LEVEL`."""
FEWEST = 3
"""How many seeds a verdict takes, of the arm and of the baseline."""


def require_statistics() -> None:
    """Report a missing library now rather than after hours of runs.

    Raises:
        InputError: SciPy is missing; names the extra that installs it.
    """
    import_extra("scipy", "studies", "comparing the arms of a study")


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
        - the ``verdict``: ``better`` or ``worse`` if p is below 5 %, ``lead`` with fewer than
          `FEWEST` seeds, ``plateau`` of losses that are not comparable (`on_plateau`), else None.
          An arm of which runs failed is never ``better``; if runs of the baseline failed, none is
          ``worse``.

        The last five are None for the baseline, and the interval and both p also for a lead, or if
        nothing varies. There is no verdict where `decidable` is False. If runs failed, ``failed``
        is the first reason.
    """
    rows = [_row(name, arm, measures[0]) for name, arm in study.arms.items()]
    judged, slow = decidable(study) is not False, on_plateau(study)
    for measure in measures:
        values = {name: arm.values_of(measure) for name, arm in study.arms.items()}
        base = values[study.baseline]
        errors = _errors(values, study.baseline, ())
        if slow:  # which are compared with the baseline by the variance of all arms
            learned = _errors(values, study.baseline, slow if decidable(study) else ())
            errors = {arm: each for arm, each in errors.items() if arm in slow} | learned
        for row in rows:
            if own := values[row["arm"]]:
                row[measure] = _one(own, base if row["arm"] != study.baseline else [])
        found = {row["arm"]: row[measure] for row in rows if measure in row}
        _test([(found[arm], *each) for arm, each in errors.items()])
        for arm, one in found.items() if judged else ():
            few = min(len(values[arm]), len(base)) < FEWEST
            stuck = arm in slow and is_loss(measure)
            one["verdict"] = "plateau" if stuck else _verdict(one, measure, few=few)
    # Where runs failed, those that are left may be the ones that were lucky.
    failed = {row["arm"] for row in rows if "failed" in row}
    for row in rows:
        doubted = {"better"} if row["arm"] in failed else set()
        doubted |= {"worse"} if study.baseline in failed else set()
        for one in (row[each] for each in measures if each in row):
            one["verdict"] = None if one["verdict"] in doubted else one["verdict"]
    first, sign = measures[0], 1.0 if is_loss(measures[0]) else -1.0
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
    decided, base, unigram = decidable(study), study.baseline, study.unigram
    same = ", ".join(without_effect(study))
    no_effect = f" Exactly as {base}, so without any effect here: {same}." if same else ""
    if unigram is None:
        return (
            "The unigram cross-entropy is not part of this result, so whether the budget is "
            f"enough to judge arms was not checked.{no_effect}"
        )
    if decided is None:
        return f"No run of the baseline {base} has finished, so arms cannot be judged yet."
    below = unigram - statistics.fmean(study.arms[base].values_of(RATES[0]))
    place = f"{abs(below):.2f} nats {'below' if below >= 0 else 'above'}"
    where = f"{base} ends {place} the unigram cross-entropy of {unigram:.3f}"
    if not decided:
        needed = f"but must end at least {GATE:g} below it"
        return f"Not decidable at this budget: {where}, {needed}.{no_effect}"
    words = f"Decidable at this budget: {where}; {GATE:g} is needed."
    if slow := on_plateau(study):
        words += f" Still on the plateau, so not comparable: {', '.join(slow)}."
    return f"{words}{no_effect}"


def without_effect(study: StudyResult) -> list[str]:
    """The arms whose runs all ended with the losses of the baseline's runs of the same seeds."""
    losses = {
        name: {seed: run.value(RATES[0]) for seed, run in arm.runs.items()}
        for name, arm in study.arms.items()
    }
    base = losses.pop(study.baseline)
    return sorted(
        arm
        for arm, own in losses.items()
        if own and all(loss is not None and base.get(seed) == loss for seed, loss in own.items())
    )


def on_plateau(study: StudyResult) -> list[str]:
    """The names of the arms that have learned little more than word frequencies, sorted.

    They may be there even if the baseline is far enough below the unigram cross-entropy. Empty if
    the study does not record that, or if its arms have corpora of their own.
    """
    if study.unigram is None or study.main_measure() != RATES[0]:
        return []
    means = means_of(study.arms, RATES[0])
    return sorted(arm for arm, mean in means.items() if mean > study.unigram - GATE)


def still_on_plateau(study: StudyResult) -> dict[str, list[str]]:
    """The arms that are still on the plateau at budgets whose baseline is not, by label."""
    parts = study.parts().items()
    slow = {label: on_plateau(part) for label, part in parts if decidable(part)}
    return {label: arms for label, arms in slow.items() if arms}


def variances_of(
    values: Mapping[str, Sequence[float]], but: Collection[str] = ()
) -> tuple[list[str], Numbers, Numbers]:
    """The arms with two seeds or more, their variances and their numbers of seeds.

    There are none if nothing varies, or if there is one such arm.

    Args:
        but: arms that are left out.
    """
    arms = [arm for arm, own in values.items() if len(own) > 1 and arm not in but]
    variances = np.array([statistics.variance(values[arm]) for arm in arms])
    seeds = np.array([len(values[arm]) for arm in arms], float)
    if len(arms) < 2 or not variances.any():
        return [], np.zeros(0), np.zeros(0)
    return arms, variances, seeds


def _errors(
    values: Mapping[str, Sequence[float]], baseline: str, but: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Standard errors and degrees of freedom of the differences that can be tested, by arm.

    Args:
        but: arms whose variance says nothing about that of others: where an arm is about to leave
            the plateau, its seeds differ ten times as much as elsewhere.
    """
    arms, variances, seeds = variances_of(values, but)
    if baseline not in arms or len(values[baseline]) < FEWEST:
        return {}
    place = arms.index(baseline)
    _, errors, freedoms = differences(np.zeros(len(arms)), variances, seeds, place)
    return {
        arm: (float(error), float(freedom))
        for arm, error, freedom in zip(arms, errors, freedoms, strict=True)
        if arm != baseline and len(values[arm]) >= FEWEST
    }


def _row(name: str, arm: Arm, first: str) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": name, "seeds": len(arm.values_of(first))}
    if failed := [run.failed for run in arm.runs.values() if run.failed is not None]:
        row["failed"] = failed[0]
    for cost in ("tokens", "seconds"):
        if values := arm.values_of(cost):
            row[cost] = statistics.fmean(values)
    return row


def _one(values: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """Mean and deviation of an arm, and its difference from the baseline, not yet tested."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "difference": statistics.fmean(values) - statistics.fmean(base) if base else None,
        **dict.fromkeys(("interval", "p", "p_alone", "verdict")),
    }


def _test(compared: Sequence[tuple[dict[str, Any], float, float]]) -> None:
    """Give the differences of one measure p-values and intervals that hold jointly.

    Holm's method may find a difference whose Bonferroni interval still holds 0; such an interval
    ends at 0, because the test has excluded what lies beyond (Guilbaud 2008).

    Args:
        compared: each with its standard error and degrees of freedom.
    """
    from scipy.stats import t

    if not compared:
        return
    tested = [one for one, _, _ in compared]
    difference = np.array([one["difference"] for one in tested])
    error, freedom = np.array([each[1:] for each in compared]).T
    alone = 2.0 * t.sf(np.abs(difference) / error, freedom)
    reach = error * t.isf(LEVEL / len(tested) / 2.0, freedom)
    ends = np.stack([difference - reach, difference + reach], 1).tolist()
    for one, p_alone, p, (low, high) in zip(tested, alone, holm(alone), ends, strict=True):
        if p < LEVEL:
            low, high = (max(0.0, low), high) if one["difference"] > 0.0 else (low, min(0.0, high))
        one |= {"interval": [low, high], "p": float(p), "p_alone": float(p_alone)}


def _verdict(one: Mapping[str, Any], measure: str, *, few: bool) -> str | None:
    if few and one["difference"] is not None:
        return "lead"
    if one["p"] is None or one["p"] >= LEVEL:
        return None
    return "better" if (one["difference"] < 0.0) == is_loss(measure) else "worse"
