"""How often a study finds a difference where there is none, and how often it finds a real one.

    python benchmarks/study_power.py [--studies 2000] [--arms 12] [--out RESULT.json]

Studies are simulated with the residuals of those in ``records/``: the differences of the held-out
losses of an arm's seeds from their mean, in units of the deviation pooled over that study's arms.
Residuals are drawn from all recorded arms; in ``unequal`` cases each arm is also scaled by the
deviation of one recorded arm. ``deviations`` are the least, the median and the greatest of these.

For each number of seeds, ``family_wise`` is the share of studies of equal arms that find any
difference, and ``uncorrected`` is the same without a correction. ``power`` is the share of studies
that find the one arm that is worse by `SHIFT` pooled deviations. ``covered`` is the share of
studies, with three in ten arms worse, whose intervals all contain the true differences. ``plain``
and ``pooled`` are tests that are not used elsewhere: Welch's test, where each arm has the variance
of its own seeds, and one variance for all arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import t

from common import Json, finish, run
from crammed.runs.environment import environment
from crammed.study.result import RATES, Arm, Run, StudyResult, read_result
from crammed.study.statistics import LEVEL, compare_arms, holm

RECORDS = Path(__file__).resolve().parents[1] / "records"
SEEDS = (3, 5)
SHIFT = 4.0
OTHERS = {"plain": 0.0, "pooled": 1e6}
"""Other tests, and the degrees of freedom that the pooled variance adds to each arm's."""
Values = NDArray[np.float64]


def main(
    studies: Annotated[int, typer.Option(min=1, help="Simulated studies of each kind.")] = 2000,
    arms: Annotated[int, typer.Option(min=2, help="Arms, with the baseline.")] = 12,
    out: Path | None = None,
) -> None:
    residuals, deviations = recorded()
    result: Json = {
        "name": "study_power",
        "environment": environment(),
        "studies": studies,
        "arms": arms,
        "shift": SHIFT,
        "residuals": len(residuals),
        "deviations": np.quantile(deviations, (0.0, 0.5, 1.0)).tolist(),
        "cases": [],
    }
    for seeds in SEEDS:
        for unequal in (False, True):
            draw = np.random.default_rng([seeds, unequal])
            shape = (studies, arms, seeds)
            values = draw.choice(residuals, shape)
            if unequal:
                values *= draw.choice(deviations, (studies, arms, 1))
            result["cases"].append({"seeds": seeds, "unequal": unequal, **_case(values)})
    finish(result, out)


def recorded() -> tuple[Values, Values]:
    """The residuals of all recorded arms, with variance 1, and the deviation of each arm."""
    residuals, deviations = list[float](), list[float]()
    for file in sorted(RECORDS.glob("*/study.json")):
        losses = [arm.values_of(RATES[0]) for arm in read_result(file.parent).arms.values()]
        several = [np.array(each) for each in losses if len(each) > 1]
        if len(several) < 2:
            continue
        within = sum(((own - own.mean()) ** 2).sum() for own in several)
        pooled = math.sqrt(within / sum(len(own) - 1 for own in several))
        for own in several:
            unbiased = math.sqrt(len(own) / (len(own) - 1)) / pooled
            residuals += ((own - own.mean()) * unbiased).tolist()
            deviations.append(float(own.std()) * unbiased)
    found = np.array(residuals)
    return found / np.sqrt((found**2).mean()), np.array(deviations)


def _case(values: Values) -> Json:
    """What studies with these losses [studies, arms, seeds] find; the first arm is the baseline.

    In `values` all arms are equal; shifts are added here.
    """
    equal = list(_compared(values))
    one, several = np.zeros((2, values.shape[1], 1))
    one[1] = SHIFT
    several[1 : 1 + round(0.3 * len(several))] = SHIFT
    shifted, mixed = list(_compared(values + one)), list(_compared(values + several))
    truth = several[1:, 0]
    return {
        "family_wise": _share(any(arm["verdict"] for arm in study) for study in equal),
        "uncorrected": _share(any(_below(arm["p_alone"]) for arm in study) for study in equal),
        "power": _share(study[0]["verdict"] == "worse" for study in shifted),
        "covered": _share(_all_hold(study, truth) for study in mixed),
        **{name: _other(values, one, weight) for name, weight in OTHERS.items()},
    }


def _compared(values: Values) -> Iterator[list[dict[str, Any]]]:
    """What `compare_arms` says about each arm except the baseline, study by study."""
    for study in values:
        arms = {str(n): _arm(losses) for n, losses in enumerate(study.tolist())}
        rows = compare_arms(StudyResult(baseline="0", arms=arms), RATES[:1])
        found = {row["arm"]: row[RATES[0]] for row in rows}
        yield [found[str(n)] for n in range(1, len(study))]


def _arm(losses: list[float]) -> Arm:
    made = (Run.model_validate({RATES[0]: loss, "tokens": 1, "seconds": 1}) for loss in losses)
    return Arm(words=[], runs={str(seed): run for seed, run in enumerate(made)})


def _other(values: Values, one: Values, weight: float) -> Json:
    """Errors and power of a t-test; `weight` is the degrees of freedom of the pooled variance."""
    return {
        "family_wise": _share(any(map(_below, p)) for p in _tested(values, weight)),
        "power": _share(_below(p[0]) for p in _tested(values + one, weight)),
    }


def _tested(values: Values, weight: float) -> Iterator[list[float]]:
    """Corrected p-values, study by study."""
    (_, arms, seeds), variance = values.shape, values.var(2, ddof=1)
    freedom = weight + seeds - 1
    joint = weight * variance.mean(1, keepdims=True) + (seeds - 1) * variance
    parts = joint / freedom / seeds
    squared = parts[:, 1:] + parts[:, :1]
    between = freedom * squared**2 / (parts[:, 1:] ** 2 + parts[:, :1] ** 2)
    between = np.minimum(between, arms * (seeds - 1))
    means = values.mean(2)
    differences = np.abs(means[:, 1:] - means[:, :1])
    return map(holm, (2.0 * t.sf(differences / np.sqrt(squared), between)).tolist())


def _all_hold(study: list[dict[str, Any]], truth: Values) -> bool:
    found = [(arm["interval"], true) for arm, true in zip(study, truth, strict=True)]
    return all(between is None or between[0] <= true <= between[1] for between, true in found)


def _below(p: float | None) -> bool:
    return p is not None and p < LEVEL


def _share(found: Iterator[bool]) -> float:
    return float(np.mean(list(found)))


if __name__ == "__main__":
    run(main)
