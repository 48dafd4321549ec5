"""What a study on a grid of budgets says: power laws of loss, and the best size.

Arms are named ``TYPE.SIZE``. A law is L = a C^-b + c, fitted to log losses by least squares; with
fewer than `FOR_A_FLOOR` budgets, too few to determine c, c is 0. It goes through the best arms of
a type: those that no other arm of the type beats with as many FLOPs or fewer. The best size is
found by parabolas over sizes (Hoffmann et al. 2022), where these had equal FLOPs. Intervals are
from a parametric bootstrap over seeds: the standard deviation of log losses within cells (an arm at
a budget), pooled over all cells, gives the error of each mean, and everything is fitted again to
means drawn with that error.

Arms still on the plateau of word frequencies when the baseline has left it are not part of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crammed.study.findings.exchange import Cell, Exchange, compare_types
from crammed.study.findings.statistics import still_on_plateau
from crammed.study.result import StudyResult

FOR_A_FLOOR = 4
DRAWS = 400
EQUAL = 1.05
"""FLOPs that differ by no more than this factor are equal; runs end with the last whole update."""
STARTS = ((0.05, 0.5), (0.3, 0.8), (1.0, 0.98))
"""Where the search for a law with a floor begins: exponent, and floor as a share of the least loss;
the best of what is found counts."""

Numbers = NDArray[np.float64]
Interval = tuple[float, float] | None
"""It holds with 95 %; None without two seeds."""


@dataclass(frozen=True)
class Law:
    """L = a C^-b + c.

    Attributes:
        between: the interval of b.
    """

    a: float
    b: float
    c: float
    between: Interval = None

    def __call__(self, flops: float) -> float:
        return float(self.a * flops**-self.b + self.c)


@dataclass(frozen=True)
class BestSize:
    """The best size at a budget.

    Attributes:
        flops: mean over all sizes.
        parameters: at the minimum of a parabola; None if the sizes do not enclose one, or did not
            have equal FLOPs.
    """

    flops: float
    parameters: float | None
    between: Interval


@dataclass(frozen=True)
class TypeFit:
    """What is found about a type.

    Attributes:
        law: through `best`; None if all of these ended at equal FLOPs, as they do when runs use
            up their text.
        best: what no other arm of the type beats with as many FLOPs or fewer.
        exponent: the best number of parameters grows with the FLOPs to this power.
    """

    law: Law | None
    best: list[Cell]
    sizes: list[BestSize]
    exponent: float | None


def cells_of(study: StudyResult, *, learned: bool = False) -> list[Cell]:
    """The cells of a study in which something finished.

    Args:
        learned: leave out the arms that are `still_on_plateau`.
    """
    loss, found = study.main_measure(), []
    slow = still_on_plateau(study) if learned else {}
    for label, part in study.parts().items():
        for arm, entry in part.arms.items():
            done = {n: run for n, run in entry.runs.items() if run.exaflop and run.value(loss)}
            if done and arm not in slow.get(label, ()):
                name, _, size = arm.partition(".")
                kind = name if size else arm  # a dot at the end belongs to the name
                runs = list(done.values())
                flops = 1e18 * math.fsum(run.exaflop or 0.0 for run in runs) / len(runs)
                about = (kind, size, label, flops, runs[0].parameters or 0)
                losses = tuple(run.value(loss) or 0.0 for run in runs)
                found.append(Cell(*about, losses, tuple(done)))
    return found


def fit_law(
    flops: Sequence[float], losses: Sequence[float], floor: bool, near: Law | None = None
) -> Law:
    """The law with the least sum of squared errors of log losses.

    Args:
        floor: whether c may be above 0.
        near: where to begin the search, in place of `STARTS`.

    Raises:
        ValueError: fewer different numbers of FLOPs than the law has parameters.
    """
    x, y = np.log(np.asarray(flops, float)), np.log(np.asarray(losses, float))
    if len(set(x)) < 2 + floor:
        raise ValueError(f"a law with {2 + floor} parameters needs as many budgets")
    middle = float(x.mean())
    if not floor:
        slope, height = np.polyfit(x - middle, y, 1)
        return Law(math.exp(height - slope * middle), -float(slope), 0.0)
    from scipy.optimize import least_squares

    def parts(found: Numbers) -> tuple[Numbers, Numbers]:
        """Log of a C^-b, and the errors, given log a, log b and log c."""
        power: Numbers = found[0] - np.exp(found[1]) * (x - middle)
        return power, np.logaddexp(power, found[2]) - y

    def slopes(found: Numbers) -> Numbers:
        power, errors = parts(found)
        share = np.exp(power - errors - y)
        return np.stack([share, -share * np.exp(found[1]) * (x - middle), 1.0 - share], 1)

    starts = [
        (y.mean() + math.log1p(-share), math.log(b), y.min() + math.log(share))
        for b, share in STARTS
    ]
    if near is not None:
        starts = [(math.log(near.a) - near.b * middle, math.log(near.b), math.log(near.c))]
    fits = [
        least_squares(lambda found: parts(found)[1], start, jac=slopes, method="lm", xtol=1e-12)
        for start in starts
    ]
    a, log_b, log_c = min(fits, key=lambda each: float(each.cost)).x
    b = math.exp(log_b)
    return Law(math.exp(a + b * middle), b, math.exp(log_c))


def best_parameters(parameters: Sequence[float], losses: Sequence[float]) -> float | None:
    """The number of parameters at the minimum of a parabola of loss over log parameters.

    None if there are fewer than three sizes, or no minimum lies between them.
    """
    x = np.log(np.asarray(parameters, float))
    if len(set(x)) < 3:
        return None
    square, line, _ = np.polyfit(x, np.asarray(losses, float), 2)
    if square <= 0.0:
        return None
    minimum = -line / (2.0 * square)
    return float(np.exp(minimum)) if x.min() <= minimum <= x.max() else None


def spread_of(cells: Sequence[Cell]) -> tuple[float, int]:
    """Pooled standard deviation of log losses within cells, and its degrees of freedom."""
    square, freedom = 0.0, 0
    for cell in cells:
        logs = np.log(cell.losses)
        square += float(np.square(logs - logs.mean()).sum())
        freedom += len(logs) - 1
    return (math.sqrt(square / freedom) if freedom else math.nan), freedom


def analyse(study: StudyResult) -> tuple[dict[str, TypeFit], Exchange | None] | None:
    """Curves by type, and the test of types; None if fewer than two budgets have finished."""
    cells = cells_of(study, learned=True)
    if len({cell.label for cell in cells}) < 2:
        return None
    deviation, freedom = spread_of(cells)
    draws = [_drawn(cells, deviation, freedom, n) for n in range(DRAWS if freedom else 0)]
    means = {cell: cell.mean for cell in cells}
    types = {}
    for kind in dict.fromkeys(cell.type for cell in cells):
        own = [cell for cell in cells if cell.type == kind]
        if len({cell.label for cell in own}) > 1:
            types[kind] = _of_type(own, means, draws)
    fitted = [cell for cell in cells if cell.type in types]
    slopes = [_steepness(each.best) for each in types.values() if each.law is not None]
    return types, compare_types(fitted, float(np.mean(slopes)) if slopes else 0.0)


def _drawn(cells: Sequence[Cell], deviation: float, freedom: int, number: int) -> dict[Cell, float]:
    random = np.random.default_rng((0, number))
    scale = deviation * math.sqrt(freedom / random.chisquare(freedom))
    return {
        cell: cell.mean * math.exp(scale / math.sqrt(len(cell.losses)) * random.normal())
        for cell in cells
    }


def _of_type(
    own: Sequence[Cell], means: Mapping[Cell, float], draws: Sequence[Mapping[Cell, float]]
) -> TypeFit:
    labels = dict.fromkeys(cell.label for cell in own)
    at_each = [[cell for cell in own if cell.label == label] for label in labels]
    best = _frontier(own, means)
    sizes = []
    for alike in at_each:
        between = _interval([_minimum(alike, each) for each in draws])
        flops = math.fsum(cell.flops for cell in alike) / len(alike)
        sizes.append(BestSize(flops, _minimum(alike, means), between))
    if (law := _law_of(best, means)) is not None:
        again = (_law_of(_frontier(own, each), each, law) for each in draws)
        law = replace(law, between=_interval([each.b if each else None for each in again]))
    return TypeFit(law, best, sizes, _exponent(sizes))


def _frontier(own: Sequence[Cell], means: Mapping[Cell, float]) -> list[Cell]:
    """The cells that no other has a lower loss than with as many FLOPs or fewer, by FLOPs."""
    best = [
        cell
        for cell in own
        if not any(o.flops <= EQUAL * cell.flops and means[o] < means[cell] for o in own)
    ]
    return sorted(best, key=lambda cell: cell.flops)


def _law_of(
    best: Sequence[Cell], means: Mapping[Cell, float], near: Law | None = None
) -> Law | None:
    """The law through the best cells; None if all have equal FLOPs."""
    flops = [cell.flops for cell in best]
    if max(flops) <= EQUAL * min(flops):
        return None
    floor = min(len({cell.label for cell in best}), len(set(flops))) >= FOR_A_FLOOR
    start = near if near is not None and near.c > 0.0 < near.b else None
    return fit_law(flops, [means[cell] for cell in best], floor, start)


def _minimum(alike: Sequence[Cell], means: Mapping[Cell, float]) -> float | None:
    """The best number of parameters; None if the cells had different FLOPs."""
    flops = [cell.flops for cell in alike]
    if max(flops) > EQUAL * min(flops):
        return None
    losses = [means[cell] for cell in alike]
    return best_parameters([cell.parameters for cell in alike], losses)


def _interval(values: Sequence[float | None]) -> Interval:
    """The middle 95 %; None without values, or if more than one in twenty is None."""
    known = [value for value in values if value is not None]
    if not known or len(known) < 0.95 * len(values):
        return None
    return float(np.quantile(known, 0.025)), float(np.quantile(known, 0.975))


def _exponent(sizes: Sequence[BestSize]) -> float | None:
    known = [(each.flops, each.parameters) for each in sizes if each.parameters is not None]
    if len({flops for flops, _ in known}) < 2:
        return None
    x, y = np.log(known).T
    return float(np.polyfit(x, y, 1)[0])


def _steepness(best: Sequence[Cell]) -> float:
    """By how many percent the loss falls for one percent more FLOPs."""
    flops, losses = np.log([(cell.flops, cell.mean) for cell in best]).T
    return -float(np.polyfit(flops, losses, 1)[0])
