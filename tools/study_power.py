"""How often a study finds a difference where there is none, and how often it finds a real one.

    python tools/study_power.py [--studies 10000] [--out RESULT.json]

Studies are simulated with normal losses, for several numbers of arms (the baseline is one) and of
seeds. Arms vary in one of three ways: ``alike``; ``unequally``, with variances from an inverse
chi-square distribution with four degrees of freedom; or there are ``noisy`` ones, one in ten, with
ten times the deviation of the others, which is not what moderated variances expect.

For each case, ``family_wise`` is the share of studies of equal arms that find any difference,
``covered`` the share of studies whose intervals all hold the true differences, and ``power`` the
share that find the one arm that is `SHIFT` typical deviations worse. ``welch`` holds the same
three for Welch's test (1947), in which each arm has the variance of its own seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import t

from crammed.files.writing import write_json
from crammed.runs.environment import environment
from crammed.study.findings.moderation import differences, holm
from crammed.study.findings.statistics import LEVEL

RECORD = Path(__file__).resolve().parents[1] / "records" / "2026-11-24-study-power"
ARMS = (3, 6, 12, 26, 40)
SEEDS = (2, 3, 5)
SHIFT = 4.0
NOISY = 10.0
Values = NDArray[np.float64]
Test = Callable[[Values, Values, Values, int], tuple[Values, Values, Values]]


def alike(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return np.ones(shape)


def unequally(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return np.sqrt(4.0 / random.chisquare(4.0, shape))


def noisy(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return np.where(random.random(shape) < 0.1, NOISY, 1.0)


def welch(
    means: Values, variances: Values, seeds: Values, base: int
) -> tuple[Values, Values, Values]:
    """As `differences`, with the variance of each arm's own seeds."""
    of_mean = variances / seeds
    both = of_mean + of_mean[..., base, None]
    parts = (of_mean**2 + of_mean[..., base, None] ** 2) / (seeds - 1.0)
    return means - means[..., base, None], np.sqrt(both), both**2 / parts


def case(
    studies: int, arms: int, seeds: int, vary: Callable[..., Values], random: np.random.Generator
) -> dict[str, Any]:
    """What studies with so many arms and seeds find, by our test and by Welch's."""
    shape = (studies, arms)
    deviations = vary(random, shape)
    means = deviations * random.normal(size=shape) / np.sqrt(seeds)
    variances = deviations**2 * random.chisquare(seeds - 1, shape) / (seeds - 1)
    drawn = means, variances, np.full(arms, float(seeds))
    about = {"arms": arms, "seeds": seeds, "vary": vary.__name__}
    return {**about, **judged(differences, *drawn), "welch": judged(welch, *drawn)}


def judged(test: Test, means: Values, variances: Values, seeds: Values) -> dict[str, float]:
    """The three shares of a test; the first arm is the baseline, and the second is shifted."""
    apart, error, freedom = (each[:, 1:] for each in test(means, variances, seeds, 0))
    reach = error * t.isf(LEVEL / apart.shape[1] / 2.0, freedom)
    any_found = holm(2.0 * t.sf(np.abs(apart) / error, freedom)).min(1) < LEVEL
    apart[:, 0] += SHIFT
    found = holm(2.0 * t.sf(np.abs(apart) / error, freedom))[:, 0] < LEVEL
    apart[:, 0] -= SHIFT
    covered = (np.abs(apart) <= reach).all(1)
    shares = {"family_wise": any_found, "covered": covered, "power": found & (apart[:, 0] > -SHIFT)}
    return {name: float(share.mean()) for name, share in shares.items()}


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies of each kind.")] = 10_000,
    out: Path = RECORD / "power.json",
) -> None:
    cases = [
        case(studies, arms, seeds, vary, np.random.default_rng([arms, seeds]))
        for seeds in SEEDS
        for vary in (alike, unequally, noisy)
        for arms in ARMS
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"environment": environment(), "studies": studies, "shift": SHIFT}
    write_json(out, {**about, "cases": cases})


if __name__ == "__main__":
    typer.run(main)
