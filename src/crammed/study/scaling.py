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
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.study.budgets import by_budget, still_on_plateau
from crammed.study.statistics import main_measure

FOR_A_FLOOR = 4
DRAWS = 1000
SHUFFLES = 9999
STEEPEST = 2.0
"""Exponents b are searched between 0 and this, `POINTS` at a time in ever smaller ranges."""
ZOOMS = 8
POINTS = 41

Numbers = NDArray[np.float64]


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
    """L = a C^-b + c."""

    a: float
    b: float
    c: float

    def __call__(self, flops: float) -> float:
        """The loss after this many FLOPs."""
        return float(self.a * flops**-self.b + self.c)


def cells_of(
    study: Mapping[str, Any],
    loss: str | None = None,
    without: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Cell]:
    """The cells of a study in which something finished.

    Args:
        study: what `run_study` returns.
        loss: name of the measure; None is the one that arms are compared by.
        without: arms to leave out, by the label of the budget.
    """
    loss, found = loss or main_measure(study), []
    for label, part in by_budget(study).items():
        left = without.get(label, ())
        for arm, entry in part["arms"].items():
            runs = [run for run in entry["runs"].values() if {loss, "exaflop"} <= run.keys()]
            if runs and arm not in left:
                name, _, size = arm.partition(".")
                kind = name if size else arm  # a dot at the end belongs to the name
                flops = 1e18 * math.fsum(run["exaflop"] for run in runs) / len(runs)
                losses = tuple(run[loss] for run in runs)
                found.append(Cell(kind, size, label, flops, runs[0]["parameters"], losses))
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


def analyse(
    study: Mapping[str, Any], loss: str | None = None, seed: int = 0
) -> dict[str, Any] | None:
    """Laws, best sizes and the test of types; None if fewer than two budgets have finished.

    Returns:
        ``{"types": {type: {"law", "points", "sizes", "exponent"}}, "test"}``. ``law`` is ``{"a",
        "b", "c", "b_interval"}`` through the best size at each budget, which are the ``points``:
        ``{"label", "flops", "size", "parameters", "loss"}``; it is None if all budgets ended at the
        same FLOPs, as they do when runs use up their text. ``sizes`` are the minima of parabolas
        over the sizes at each budget, ``{"flops", "parameters", "interval"}`` each, with None for
        parameters if the sizes do not enclose a minimum; the best number of parameters grows with
        the FLOPs to the power of ``exponent``. ``test`` is what `compare_types` returns. Intervals
        hold with 95 %, and are None without two seeds.
    """
    cells = cells_of(study, loss, still_on_plateau(study))
    if len({cell.label for cell in cells}) < 2:
        return None
    deviation, freedom = spread_of(cells)
    draws = [_drawn(cells, deviation, freedom, seed, n) for n in range(DRAWS if freedom else 0)]
    means = {_place(cell): cell.mean for cell in cells}
    types = {}
    for kind in dict.fromkeys(cell.type for cell in cells):
        own = [cell for cell in cells if cell.type == kind]
        if len({cell.label for cell in own}) > 1:
            types[kind] = _of_type(own, means, draws)
    fitted = [cell for cell in cells if cell.type in types]
    return {"types": types, "test": compare_types(fitted, types, seed)}


Place = tuple[str, str, str]


def _place(cell: Cell) -> Place:
    return cell.type, cell.size, cell.label


def _drawn(
    cells: Sequence[Cell], deviation: float, freedom: int, seed: int, number: int
) -> dict[Place, float]:
    """Means that other seeds might have given."""
    random = np.random.default_rng((seed, number))
    scale = deviation * math.sqrt(freedom / random.chisquare(freedom))
    return {
        _place(cell): cell.mean * math.exp(scale / math.sqrt(len(cell.losses)) * random.normal())
        for cell in cells
    }


def _of_type(
    own: Sequence[Cell], means: Mapping[Place, float], draws: Sequence[Mapping[Place, float]]
) -> dict[str, Any]:
    best = _frontier(own, means)
    law = _law_of(best, means)
    again = [found for each in draws if (found := _law_of(_frontier(own, each), each)) is not None]
    sizes = []
    for label in dict.fromkeys(cell.label for cell in own):
        alike = [cell for cell in own if cell.label == label]
        minima = [_minimum(alike, each) for each in draws]
        sizes.append(
            {
                "flops": math.fsum(cell.flops for cell in alike) / len(alike),
                "parameters": _minimum(alike, means),
                "interval": _interval([each for each in minima if each is not None], len(draws)),
            }
        )
    points = [
        {
            "label": cell.label,
            "flops": cell.flops,
            "size": cell.size,
            "parameters": cell.parameters,
            "loss": cell.mean,
        }
        for cell in best
    ]
    between = _interval([each.b for each in again], len(draws))
    fitted = None if law is None else asdict(law) | {"b_interval": between}
    return {"law": fitted, "points": points, "sizes": sizes, "exponent": _exponent(sizes)}


def _frontier(own: Sequence[Cell], means: Mapping[Place, float]) -> list[Cell]:
    """The best size at each budget."""
    labels = dict.fromkeys(cell.label for cell in own)
    alike = ([cell for cell in own if cell.label == label] for label in labels)
    return [min(each, key=lambda cell: means[_place(cell)]) for each in alike]


def _law_of(best: Sequence[Cell], means: Mapping[Place, float]) -> Law | None:
    """The law through the best sizes; None if all have the same FLOPs."""
    flops = [cell.flops for cell in best]
    budgets = len(set(flops))
    if budgets < 2:
        return None
    return fit_law(flops, [means[_place(cell)] for cell in best], budgets >= FOR_A_FLOOR)


def _minimum(alike: Sequence[Cell], means: Mapping[Place, float]) -> float | None:
    losses = [means[_place(cell)] for cell in alike]
    return best_parameters([cell.parameters for cell in alike], losses)


def _interval(values: Sequence[float], draws: int) -> list[float] | None:
    """The middle 95 %; None without draws, or if more than one in twenty gave no value."""
    if not draws or len(values) < 0.95 * draws:
        return None
    return [float(each) for each in np.quantile(values, (0.025, 0.975))]


def _exponent(sizes: Sequence[Mapping[str, Any]]) -> float | None:
    known = [each for each in sizes if each["parameters"] is not None]
    if len({each["flops"] for each in known}) < 2:
        return None
    x = np.log([each["flops"] for each in known])
    return float(np.polyfit(x, np.log([each["parameters"] for each in known]), 1)[0])


def compare_types(
    cells: Sequence[Cell], types: Mapping[str, Any], seed: int = 0
) -> dict[str, Any] | None:
    """Test whether one curve describes all types as well as a curve for each does.

    One curve: log losses depend on size and budget alone. A curve for each: every type also has a
    shift and a slope over log FLOPs of its own. Only sizes and budgets that all types have count.
    The permutation test exchanges types among the runs of a size and budget; it assumes only that
    these runs are exchangeable if types do not differ.

    Returns:
        ``{"f", "freedom", "p", "p_permutation", "shifts"}``; a shift is ``percent``, by which a
        type's loss is above the mean of all types, and ``compute``, how many times the FLOPs all
        types would need for the same loss. None if there are too few types or runs.
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
    design: _Design, kinds: Sequence[str], types: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    from scipy.stats import f as f_distribution

    f = design.f(design.kind)
    random = np.random.default_rng((seed, len(kinds)))
    larger = sum(design.f(design.shuffled(random)) >= f * (1 - 1e-12) for _ in range(SHUFFLES))
    slopes = [_steepness(each["points"]) for each in types.values() if each["law"] is not None]
    slope = float(np.mean(slopes)) if slopes else 0.0
    shifts = {}
    for number, name in enumerate(kinds):
        shift = float(design.within[design.kind == number].mean())
        factor = math.exp(min(-shift / slope, 50.0)) if slope > 0.0 else None
        shifts[name] = {"percent": 100 * math.expm1(shift), "compute": factor}
    return {
        "f": f,
        "freedom": list(design.freedom),
        "p": float(f_distribution.sf(f, *design.freedom)),
        "p_permutation": (1 + int(larger)) / (1 + SHUFFLES),
        "shifts": shifts,
    }


def _steepness(points: Sequence[Mapping[str, Any]]) -> float:
    """By how many percent the loss falls for one percent more FLOPs."""
    flops, losses = (np.log([each[name] for each in points]) for name in ("flops", "loss"))
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
        slopes = 2 if len(set(x)) > 1 else 1
        self._slopes = slopes
        first = (kinds - 1) * slopes
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
