"""What a study on a grid of budgets says: power laws of loss, the best size, whether types differ.

Arms are named ``TYPE.SIZE``. A law is L = a C^-b + c, fitted to relative errors; with fewer than
`FOR_A_FLOOR` budgets, too few to determine c, c is 0. Intervals are from a parametric bootstrap
over seeds: the standard deviation of log losses within cells (an arm at a budget), pooled over all
cells, gives the error of each mean, and everything is fitted again to means drawn with that error.

Arms still on the plateau of word frequencies when the baseline has left it are not part of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crammed.study.result import StudyResult
from crammed.study.statistics import still_on_plateau

FOR_A_FLOOR = 4
DRAWS = 1000
SHUFFLES = 9999
STEEPEST = 2.0
"""Exponents b are searched between 0 and this, `POINTS` at a time in ever smaller ranges."""
ZOOMS = 8
POINTS = 41

Numbers = NDArray[np.float64]
Interval = tuple[float, float] | None
"""It holds with 95 %; None without two seeds."""


@dataclass(frozen=True)
class Cell:
    """An arm at one budget.

    Attributes:
        flops: mean training FLOPs of its runs.
        losses: held-out loss of each seed.
    """

    type: str
    size: str
    label: str
    flops: float
    parameters: int
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.losses) / len(self.losses)


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
        """The loss after this many FLOPs."""
        return float(self.a * flops**-self.b + self.c)


@dataclass(frozen=True)
class BestSize:
    """The best size at a budget.

    Attributes:
        flops: mean over all sizes.
        parameters: at the minimum of a parabola; None if the sizes do not enclose one.
    """

    flops: float
    parameters: float | None
    between: Interval


@dataclass(frozen=True)
class TypeFit:
    """What is found about a type.

    Attributes:
        law: through `best`; None if all budgets ended at the same FLOPs, as they do when runs use
            up their text.
        best: the best size at each budget.
        exponent: the best number of parameters grows with the FLOPs to this power.
    """

    law: Law | None
    best: list[Cell]
    sizes: list[BestSize]
    exponent: float | None


@dataclass(frozen=True)
class Exchange:
    """The test of types: the F statistic, its degrees of freedom, and p by two methods.

    Attributes:
        shifts: of each type, by how many percent its loss is above the mean of all, and how many
            times the FLOPs all types would need for the same loss.
    """

    f: float
    freedom: tuple[int, int]
    p: float
    p_permutation: float
    shifts: dict[str, tuple[float, float | None]]


def cells_of(study: StudyResult, *, learned: bool = False) -> list[Cell]:
    """The cells of a study in which something finished.

    Args:
        learned: leave out the arms that are `still_on_plateau`.
    """
    loss, found = study.main_measure(), []
    slow = still_on_plateau(study) if learned else {}
    for label, part in study.parts().items():
        for arm, entry in part.arms.items():
            runs = [run for run in entry.runs.values() if run.exaflop and run.value(loss)]
            if runs and arm not in slow.get(label, ()):
                name, _, size = arm.partition(".")
                kind = name if size else arm  # a dot at the end belongs to the name
                flops = 1e18 * math.fsum(run.exaflop or 0.0 for run in runs) / len(runs)
                losses = tuple(run.value(loss) or 0.0 for run in runs)
                found.append(Cell(kind, size, label, flops, runs[0].parameters or 0, losses))
    return found


def fit_law(flops: Sequence[float], losses: Sequence[float], floor: bool) -> Law:
    """The law with the least sum of squared relative errors.

    Args:
        floor: whether c may be above 0.

    Raises:
        ValueError: fewer different numbers of FLOPs than the law has parameters.
    """
    x, y = np.asarray(flops, float), np.asarray(losses, float)
    if len(set(x)) < 2 + floor:
        raise ValueError(f"a law with {2 + floor} parameters needs as many budgets")
    unit = float(np.exp(np.log(x).mean()))  # FLOPs in units of their mean keep a within range
    low, high = 0.0, STEEPEST
    for _ in range(ZOOMS):
        grid = np.linspace(low, high, POINTS)[1:]
        errors, a, c = _given_slopes(grid, x / unit, y, floor)
        best = int(np.argmin(errors))
        step = grid[1] - grid[0]
        low, high = max(0.0, grid[best] - step), min(STEEPEST, grid[best] + step)
    b = float(grid[best])
    return Law(float(a[best]) * unit**b, b, float(c[best]))


def _given_slopes(
    b: Numbers, x: Numbers, y: Numbers, floor: bool
) -> tuple[Numbers, Numbers, Numbers]:
    """Squared error, a and c of the best law for each of these b, [B], with a and c at least 0."""
    p, q = x[None, :] ** -b[:, None] / y, (1.0 / y)[None, :]
    pp, sum_p = np.square(p).sum(1), p.sum(1)
    a, c = sum_p / pp, np.zeros_like(b)
    if floor:
        pq, qq, sum_q = (p * q).sum(1), np.square(q).sum(), q.sum()
        spread = pp * qq - np.square(pq)
        free = (pp * sum_q - pq * sum_p) / spread, (sum_p * qq - sum_q * pq) / spread
        above = free[0] > 0.0
        flat = above & (free[1] < 0.0)
        a = np.where(above, np.where(flat, 0.0, free[1]), a)
        c = np.where(above, np.where(flat, sum_q / qq, free[0]), c)
    return np.square(a[:, None] * p + c[:, None] * q - 1.0).sum(1), a, c


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
    return types, compare_types(fitted, types)


def _drawn(cells: Sequence[Cell], deviation: float, freedom: int, number: int) -> dict[Cell, float]:
    """Means that other seeds might have given."""
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
    best = _frontier(at_each, means)
    sizes = []
    for alike in at_each:
        between = _interval([_minimum(alike, each) for each in draws])
        flops = math.fsum(cell.flops for cell in alike) / len(alike)
        sizes.append(BestSize(flops, _minimum(alike, means), between))
    if (law := _law_of(best, means)) is not None:
        again = (_law_of(_frontier(at_each, each), each) for each in draws)
        law = replace(law, between=_interval([each.b if each else None for each in again]))
    return TypeFit(law, best, sizes, _exponent(sizes))


def _frontier(at_each: Sequence[Sequence[Cell]], means: Mapping[Cell, float]) -> list[Cell]:
    """The best size at each budget."""
    return [min(alike, key=means.__getitem__) for alike in at_each]


def _law_of(best: Sequence[Cell], means: Mapping[Cell, float]) -> Law | None:
    """The law through the best sizes; None if all have the same FLOPs."""
    flops = [cell.flops for cell in best]
    budgets = len(set(flops))
    if budgets < 2:
        return None
    return fit_law(flops, [means[cell] for cell in best], budgets >= FOR_A_FLOOR)


def _minimum(alike: Sequence[Cell], means: Mapping[Cell, float]) -> float | None:
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


def compare_types(
    cells: Sequence[Cell], types: Mapping[str, TypeFit], seed: int = 0
) -> Exchange | None:
    """Test whether one curve describes all types as well as a curve for each does.

    One curve: log losses depend on size and budget alone. A curve for each: every type also has a
    shift and a slope over log FLOPs of its own. Only sizes and budgets that all types have count.
    The permutation test exchanges types among the runs of a size and budget; it assumes only that
    these runs are exchangeable if types do not differ.

    Returns:
        None if there are too few types or runs.
    """
    kinds = list(dict.fromkeys(cell.type for cell in cells))
    blocks: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        blocks.setdefault((cell.size, cell.label), []).append(cell)
    whole = [block for block in blocks.values() if len(block) == len(kinds)]
    if len(kinds) < 2 or not whole:
        return None
    logs, kind, place, x = [], [], [], []
    for number, block in enumerate(whole):
        for cell in block:
            logs += [math.log(loss) for loss in cell.losses]
            kind += len(cell.losses) * [kinds.index(cell.type)]
            place += len(cell.losses) * [number]
            x += len(cell.losses) * [math.log(block[0].flops)]
    design = _Design(np.array(logs), np.array(kind), np.array(place), np.array(x), len(kinds))
    if design.freedom[1] < 1:
        return None
    return _tested(design, kinds, types, seed)


def _tested(
    design: _Design, kinds: Sequence[str], types: Mapping[str, TypeFit], seed: int
) -> Exchange:
    from scipy.stats import f as f_distribution

    f = design.f(design.kind)
    random = np.random.default_rng((seed, len(kinds)))
    larger = sum(design.f(design.shuffled(random)) >= f * (1 - 1e-12) for _ in range(SHUFFLES))
    slopes = [_steepness(each.best) for each in types.values() if each.law is not None]
    slope = float(np.mean(slopes)) if slopes else 0.0
    shifts = {}
    for number, name in enumerate(kinds):
        shift = float(design.within[design.kind == number].mean())
        factor = math.exp(min(-shift / slope, 50.0)) if slope > 0.0 else None
        shifts[name] = 100 * math.expm1(shift), factor
    p, p_permutation = f_distribution.sf(f, *design.freedom), (1 + int(larger)) / (1 + SHUFFLES)
    return Exchange(f, design.freedom, float(p), p_permutation, shifts)


def _steepness(best: Sequence[Cell]) -> float:
    """By how many percent the loss falls for one percent more FLOPs."""
    flops, losses = np.log([(cell.flops, cell.mean) for cell in best]).T
    return -float(np.polyfit(flops, losses, 1)[0])


class _Design:
    """The two models, one curve for all types and one for each, on the same runs.

    Args:
        logs: log losses of the runs, [N].
        kind: their types, [N].
        place: their blocks, runs of one size and budget, [N].
        x: the log FLOPs of their blocks, [N].
        kinds: how many types there are.
    """

    def __init__(
        self,
        logs: Numbers,
        kind: NDArray[np.int64],
        place: NDArray[np.int64],
        x: Numbers,
        kinds: int,
    ) -> None:
        self.kind = kind
        self._kinds = kinds
        self._place = place
        self._count = np.bincount(place)
        self._x = x - x.mean()
        self.within = self._less_mean(logs)
        self._slopes = 2 if len(set(x)) > 1 else 1
        first = (kinds - 1) * self._slopes
        self.freedom = (first, len(logs) - len(self._count) - first)

    def _less_mean(self, values: Numbers) -> Numbers:
        """Values less the mean of their block, along the first axis."""
        columns = values.reshape(len(values), -1)
        sums = np.zeros((len(self._count), columns.shape[1]))
        np.add.at(sums, self._place, columns)
        less: Numbers = columns - (sums / self._count[:, None])[self._place]
        return less.reshape(values.shape)

    def shuffled(self, random: np.random.Generator) -> NDArray[np.int64]:
        """Types exchanged within blocks."""
        order = np.lexsort((random.random(len(self.kind)), self._place))
        into = np.lexsort((np.arange(len(self.kind)), self._place))
        kinds = np.empty_like(self.kind)
        kinds[into] = self.kind[order]
        return kinds

    def f(self, kind: NDArray[np.int64]) -> float:
        """The F statistic if the runs had these types."""
        each = np.eye(self._kinds)[kind][:, 1:]
        columns = [each, each * self._x[:, None]][: self._slopes]
        design = self._less_mean(np.concatenate(columns, axis=1))
        found, *_ = np.linalg.lstsq(design, self.within, rcond=None)
        all_alike = float(np.square(self.within).sum())
        apart = float(np.square(self.within - design @ found).sum())
        first, second = self.freedom
        return (all_alike - apart) / first / max(apart / second, 1e-300)
