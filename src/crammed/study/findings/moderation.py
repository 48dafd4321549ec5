"""Moderated variances (Smyth 2004): what a few seeds say about an arm, and what all arms say.

An arm's variance is thought of as drawn from a scaled inverse chi-square distribution, whose scale
and degrees of freedom are estimated from all arms of a study, by the moments of their log variances
(`limma`'s ``squeezeVar``). Where arms vary alike, each borrows much from the others; where they do
not, little, so a few noisy arms hardly widen the intervals of others.

Few arms say little about these degrees of freedom. So the variance between log variances counts as
`CAUTION` of its standard error larger than it is found, and a difference between two arms has the
degrees of freedom of the one that has fewer. ``tools/study_power.py`` simulates what that does.

Arrays may have leading axes, each a study of its own; the last axis is the arms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CAUTION = 0.25
_LEAST = 1e-5
"""Variances count as at least this share of their mean, because log 0 is no number."""
_NEWTON, _EXACT = 20, 1e-14
"""The most steps of Newton's method, which ends once a step changes no value by this share."""

Numbers = NDArray[np.float64]


def squeezed(variances: Numbers, freedom: Numbers) -> tuple[Numbers, Numbers]:
    """Variances moderated by each other, and their degrees of freedom, [..., G] each.

    Args:
        variances: of two arms or more; not all are 0.
        freedom: degrees of freedom of each, at least 1, [G].
    """
    from scipy.special import digamma, polygamma

    floor = _LEAST * variances.mean(-1, keepdims=True)
    half = freedom / 2.0
    logs = np.log(np.maximum(variances, floor)) - digamma(half) + np.log(half)
    noise = polygamma(1, half)
    spread = np.maximum(logs.var(-1, ddof=1, keepdims=True) - noise.mean(), 0.0)
    error = np.sqrt((polygamma(3, half) + 2.0 * noise**2).mean() / len(freedom))
    prior = 2.0 * inverse_trigamma(spread + CAUTION * error)
    scale = np.exp(logs.mean(-1, keepdims=True) + digamma(prior / 2.0) - np.log(prior / 2.0))
    joint = (prior * scale + freedom * variances) / (prior + freedom)
    return joint, np.minimum(prior + freedom, freedom.sum())


def inverse_trigamma(values: Numbers) -> Numbers:
    """The numbers whose trigamma these are, all above 0, by Newton's method (Smyth 2004)."""
    from scipy.special import polygamma

    found = 0.5 + 1.0 / values
    for _ in range(_NEWTON):
        trigamma = polygamma(1, found)
        step = trigamma * (1.0 - trigamma / values) / polygamma(2, found)
        found = found + step
        if np.all(np.abs(step) <= _EXACT * found):
            break
    return found


def differences(
    means: Numbers, variances: Numbers, seeds: Numbers, base: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Differences of all arms from arm `base`, their standard errors and degrees of freedom.

    All are [..., G]; those of `base` itself mean nothing.

    Args:
        means: over the seeds of each arm, [..., G].
        variances: of its seeds, [..., G].
        seeds: how many there are, at least 2, [G].
    """
    joint, freedom = squeezed(variances, seeds - 1.0)
    of_mean = joint / seeds
    error = np.sqrt(of_mean + of_mean[..., base, None])
    return means - means[..., base, None], error, np.minimum(freedom, freedom[..., base, None])


def holm(p_values: Numbers) -> Numbers:
    """P-values corrected for their number along the last axis (Holm 1979)."""
    order = np.argsort(p_values, -1)
    count = p_values.shape[-1]
    steps = np.take_along_axis(p_values, order, -1) * (count - np.arange(count))
    corrected = np.empty_like(p_values)
    least = np.minimum(1.0, np.maximum.accumulate(steps, -1))
    np.put_along_axis(corrected, order, least, -1)
    return corrected
