"""Moderated variances and the power of studies, against slow twins and known answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma, polygamma
from scipy.stats import nct, t

from crammed.study.findings.moderation import CAUTION, differences, holm, inverse_trigamma, squeezed
from crammed.study.findings.power import OFTEN, power, seeds_needed
from crammed.study.findings.statistics import compare_arms
from crammed.study.result import RATES, StudyResult
from support.study import run_of


def study_of(values: np.ndarray[Any, Any]) -> StudyResult:
    """A study with these losses [arms, seeds]; the first arm is the baseline."""
    arms = {
        str(number): {"words": [], "runs": {str(s): run_of(x) for s, x in enumerate(own)}}
        for number, own in enumerate(values.tolist())
    }
    return StudyResult.model_validate({"baseline": "0", "arms": arms})


def test_the_inverse_of_trigamma() -> None:
    values = np.geomspace(1e-4, 1e3, 30)
    assert polygamma(1, inverse_trigamma(values)) == pytest.approx(values, rel=1e-9)


def test_variances_are_moderated_as_in_plain_loops() -> None:
    variances, freedom = [0.5, 2.0, 0.03, 1.2], [2, 2, 1, 4]
    logs, noise, fourth = [], [], []
    for variance, d in zip(variances, freedom, strict=True):
        logs.append(math.log(variance) - digamma(d / 2) + math.log(d / 2))
        noise.append(polygamma(1, d / 2))
        fourth.append(polygamma(3, d / 2) + 2 * polygamma(1, d / 2) ** 2)
    mean = sum(logs) / 4
    spread = max(0.0, sum((each - mean) ** 2 for each in logs) / 3 - sum(noise) / 4)
    wanted = spread + CAUTION * math.sqrt(sum(fourth) / 4 / 4)
    low, high = 1e-3, 1e6  # the degrees of freedom of the prior, by bisection
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if polygamma(1, middle / 2) > wanted else (low, middle)
    scale = math.exp(mean + digamma(low / 2) - math.log(low / 2))
    joint, total = squeezed(np.array(variances), np.array(freedom, float))
    for number in range(4):
        d = freedom[number]
        assert joint[number] == pytest.approx((low * scale + d * variances[number]) / (low + d))
        assert total[number] == pytest.approx(min(low + d, 9))


def test_the_prior_of_many_arms_is_found_again() -> None:
    """Variances that are drawn from a scaled inverse chi-square distribution."""
    random = np.random.default_rng(0)
    own = 0.3 * 5.0 / random.chisquare(5.0, 20_000)
    found = own * random.chisquare(2.0, 20_000) / 2.0
    joint, total = squeezed(found, np.full(20_000, 2.0))
    assert total.mean() - 2.0 == pytest.approx(5.0, rel=0.1)
    prior = (joint * total - 2.0 * found) / (total - 2.0)
    assert prior.mean() == pytest.approx(0.3, rel=0.05)


def test_p_values_are_corrected_as_holm_does() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([[0.9, 0.8], [0.01, 0.5]])).tolist() == [[1.0, 1.0], [0.02, 0.5]]


def test_many_studies_at_once_are_each_of_them() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(3, 5, 4))
    seeds = np.full(5, 4.0)
    many = differences(values.mean(2), values.var(2, ddof=1), seeds, 0)
    p = holm(2.0 * t.sf(np.abs(many[0]) / many[1], many[2])[:, 1:])
    for number, study in enumerate(values):
        rows = {row["arm"]: row[RATES[0]] for row in compare_arms(study_of(study))}
        for arm in range(1, 5):
            assert rows[str(arm)]["difference"] == pytest.approx(many[0][number, arm])
            assert rows[str(arm)]["p"] == pytest.approx(p[number, arm - 1])


def test_power_is_what_drawing_studies_one_by_one_finds() -> None:
    random = np.random.default_rng(2)
    values = random.normal(size=(4, 3)) * np.array([[0.01], [0.02], [0.01], [0.03]])
    study, stated = study_of(values), 0.06
    variances, _ = squeezed(values.var(1, ddof=1), np.full(4, 2.0))
    found = []
    for number in range(300):
        drawn = random.normal(size=(4, 3)) * np.sqrt(variances)[:, None]
        differs = 1 + number % 3
        drawn[differs] += stated
        rows = {row["arm"]: row[RATES[0]] for row in compare_arms(study_of(drawn))}
        found.append(rows[str(differs)]["p"] < 0.05)
    share = power(study, stated=[stated])[stated]
    assert 0.2 < share < 0.95
    assert np.mean(found) == pytest.approx(share, abs=3 * math.sqrt(share * (1 - share) / 300))


def test_power_with_many_seeds_is_that_of_a_t_test() -> None:
    """Two groups of thirty with equal variance: the noncentral t distribution knows."""
    own = np.tile([0.0, 1.0], 15)
    study, error = study_of(np.stack([own, own])), float(own.std(ddof=1)) * math.sqrt(2 / 30)
    found = power(study, stated=[0.2, 0.4])
    for difference, share in found.items():
        exact = nct.sf(t.isf(0.025, 58), 58, difference / error)
        assert share == pytest.approx(float(exact), abs=0.05)
    assert power(study_of(np.zeros((3, 3)))) == {}


def test_the_seeds_that_a_difference_takes_are_those_of_a_t_test() -> None:
    own = np.tile([0.0, 1.0], 15)
    study = study_of(np.stack([own, own]))
    variance = float(own.var(ddof=1))
    exact = next(
        seeds
        for seeds in range(3, 100)
        if nct.sf(t.isf(0.025, 2 * seeds - 2), 2 * seeds - 2, 0.5 / math.sqrt(2 * variance / seeds))
        >= OFTEN
    )
    assert seeds_needed(study, RATES[0], 0.5) == pytest.approx(exact, abs=3)
    assert seeds_needed(study, RATES[0], 10.0) == 3
    assert seeds_needed(study, RATES[0], 0.01) is None
