"""What a study could have found: the power at stated differences, simulated for its own arms.

Studies are drawn with the arms, the seeds and the moderated variances of this one. In each, one
arm differs from the others by a stated difference, and the study is judged as this one is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from crammed.study.findings.moderation import differences, holm, squeezed
from crammed.study.findings.statistics import FEWEST, LEVEL, decidable, on_plateau, variances_of
from crammed.study.result import RATES, StudyResult, is_loss

STUDIES = 2000
OF_LOSSES = (0.02, 0.05, 0.1, 0.2)
"""The differences whose power is stated, in nats or bits; `OF_SCORES` in points."""
OF_SCORES = (1.0, 2.0, 5.0, 10.0)
OFTEN = 0.8
"""How probable it should be to find a difference that is there."""
MOST_SEEDS = 100


def seeds_needed(study: StudyResult, measure: str, difference: float) -> int | None:
    """The fewest seeds of every arm that find a difference in four of five studies (`OFTEN`).

    None if `MOST_SEEDS` find it less often.
    """
    seeds = range(FEWEST, MOST_SEEDS + 1)

    def found(each: int) -> bool:
        return power(study, measure, [difference], seeds=each).get(difference, 0.0) >= OFTEN

    first = bisect_left(seeds, True, key=found)
    return seeds[first] if first < len(seeds) else None


def power(
    study: StudyResult,
    measure: str = RATES[0],
    stated: Sequence[float] | None = None,
    *,
    seeds: int | None = None,
) -> dict[float, float]:
    """The probability of finding each stated difference, if an arm has it as the only one.

    It is the mean over the arms. Arms with fewer seeds than a verdict takes count as if they had
    `FEWEST`. Empty if fewer than two arms have two seeds, or nothing varies.

    Args:
        seeds: that every arm counts as if it had, instead of its own.
    """
    from scipy.stats import t

    values = {name: arm.values_of(measure) for name, arm in study.arms.items()}
    arms, found, own = variances_of(values, on_plateau(study) if decidable(study) else ())
    if study.baseline not in arms:
        return {}
    variances, _ = squeezed(found, own - 1.0)
    base = arms.index(study.baseline)
    counted = np.maximum(own, FEWEST) if seeds is None else np.full(len(arms), float(seeds))
    random = np.random.default_rng(0)
    shape = (STUDIES, len(arms))
    means = random.normal(size=shape) * np.sqrt(variances / counted)
    drawn = variances * random.chisquare(counted - 1.0, shape) / (counted - 1.0)
    apart, error, freedom = (
        np.delete(each, base, 1) for each in differences(means, drawn, counted, base)
    )
    studies = np.arange(STUDIES)
    differs = studies % apart.shape[1]  # each arm equally often
    p = 2.0 * t.sf(np.abs(apart) / error, freedom)
    shares = {}
    for each in stated or (OF_LOSSES if is_loss(measure) else OF_SCORES):
        size = np.abs(apart[studies, differs] + each) / error[studies, differs]
        p[studies, differs] = 2.0 * t.sf(size, freedom[studies, differs])
        shares[each] = float((holm(p)[studies, differs] < LEVEL).mean())
    return shares
