"""How often the 95 % interval of a comparison contains the true difference, by simulation.

    python benchmarks/coverage.py [--simulations 1000] [--rows 400] [--out RESULT.json]

Two equally good models are fine-tuned with several seeds each and scored on the same rows. Whether
a seed gets a row right depends on the row, on the seed and on chance. The true difference between
the models, over all rows and seeds, is 0. ``deviation`` is the spread of the seeds of a case, in
percentage points: the standard deviation of their scores on the same rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from common import Json, report, run
from crammed.evaluation.scores.compare import paired_difference
from crammed.evaluation.scores.predictions import Outputs
from crammed.tasks.rows import Rows

MEAN = 0.5
"""A row is right if this, its own term, the seed's skill and chance add up to more than 0."""
ROW, CHANCE = 0.7, 0.7
SEED = (0.0, 0.08, 0.16, 0.3)
"""Standard deviations of the seeds' skill, one for each case."""
SEEDS = (1, 2, 3, 5, 8)


def main(
    simulations: Annotated[int, typer.Option(min=2, help="Comparisons in each case.")] = 1000,
    rows: Annotated[int, typer.Option(min=2, help="Rows that models are scored on.")] = 400,
    out: Path | None = None,
) -> None:
    cases = [_case(spread, count, simulations, rows) for spread in SEED for count in SEEDS]
    report("coverage", out, simulations=simulations, rows=rows, cases=cases)


def _case(spread: float, seeds: int, simulations: int, count: int) -> Json:
    """The share of intervals that contain 0, with this many seeds per model and this spread."""
    truth = np.random.default_rng(0).integers(2, size=count)
    rows = Rows([("",)] * count, truth.astype(np.float32))
    held, deviations = 0, []
    for number in range(simulations):
        draw = np.random.default_rng([number, seeds, round(1000 * spread)])
        difficulty = ROW * draw.standard_normal(count)
        models = [_right(draw, difficulty, spread, seeds) for _ in range(2)]
        a, b = ([_outputs(truth, each) for each in right] for right in models)
        low, high = paired_difference(("accuracy",), a, b, rows, (), "x", "x").json()["interval"]
        held += low <= 0.0 <= high
        deviations.append(100 * _right(draw, difficulty, spread, 8).mean(1).std(ddof=1))
    found: Json = {"spread": spread, "deviation": float(np.mean(deviations)), "seeds": seeds}
    return {**found, "held": held / simulations}


def _right(
    draw: np.random.Generator, difficulty: NDArray[np.float64], spread: float, seeds: int
) -> NDArray[np.bool_]:
    """Which rows each seed of a model gets right, [seeds, rows]."""
    skill = spread * draw.standard_normal((seeds, 1))
    chance = CHANCE * draw.standard_normal((seeds, len(difficulty)))
    right: NDArray[np.bool_] = MEAN + difficulty + skill + chance > 0
    return right


def _outputs(truth: NDArray[np.int64], right: NDArray[np.bool_]) -> Outputs:
    return np.eye(2)[np.where(right, truth, 1 - truth)]


if __name__ == "__main__":
    run(main)
