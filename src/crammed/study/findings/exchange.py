"""Whether the types of a study on a grid of budgets differ, at equal size and FLOPs.

One curve for all: log losses depend on size and budget alone. A curve for each: every type also has
a shift, and a slope over log FLOPs, of its own. Types whose blocks cost more have spent more FLOPs
on the same tokens, so each loss is first moved to the mean FLOPs of its block (the runs of a size
and a budget), along the slope of the laws. A permutation test then exchanges types within blocks;
it assumes only that the runs of a block are exchangeable if types do not differ. If there are few
exchanges, all are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

SHUFFLES = 9999
Numbers = NDArray[np.float64]
Kinds = NDArray[np.int64]


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
class Exchange:
    """The test of types.

    Attributes:
        f: the F statistic, and `freedom`, its degrees of freedom.
        p: by its distribution; None with one seed, where nothing says how much seeds vary.
        p_permutation: by exchanging types; `least` is the smallest that can be attained so.
        shifts: of each type, by how many percent its loss is above the mean of all, and how many
            times the FLOPs all types would need for the same loss.
    """

    f: float
    freedom: tuple[int, int]
    p: float | None
    p_permutation: float
    least: float
    shifts: dict[str, tuple[float, float | None]]


def compare_types(cells: Sequence[Cell], slope: float, seed: int = 0) -> Exchange | None:
    """Test whether one curve describes all types as well as a curve for each does.

    Only sizes and budgets that all types have count.

    Args:
        slope: by how many percent losses fall for one percent more FLOPs.

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
        middle = math.fsum(math.log(cell.flops) for cell in block) / len(block)
        for cell in block:
            moved = slope * (math.log(cell.flops) - middle)
            logs += [math.log(loss) + moved for loss in cell.losses]
            kind += len(cell.losses) * [kinds.index(cell.type)]
            place += len(cell.losses) * [number]
            x += len(cell.losses) * [middle]
    design = _Design(np.array(logs), np.array(kind), np.array(place), np.array(x), len(kinds))
    if design.freedom[1] < 1:
        return None
    several = any(len(cell.losses) > 1 for block in whole for cell in block)
    return _tested(design, kinds, slope, several, seed)


def _tested(
    design: _Design, kinds: Sequence[str], slope: float, several: bool, seed: int
) -> Exchange:
    from scipy.stats import f as f_distribution

    f, count = design.f(design.kind), design.exchanges()
    if every := count <= SHUFFLES:
        found = [design.f(each) for each in design.every_exchange()]
    else:
        random = np.random.default_rng((seed, len(kinds)))
        found = [f, *(design.f(design.shuffled(random)) for _ in range(SHUFFLES))]
    least = max(design.renamings() / count, 0.0 if every else 1 / len(found))
    as_large = sum(each >= f * (1 - 1e-9) for each in found) / len(found)
    shifts = {}
    for number, name in enumerate(kinds):
        shift = float(design.within[design.kind == number].mean())
        factor = math.exp(min(-shift / slope, 50.0)) if slope > 0.0 else None
        shifts[name] = 100 * math.expm1(shift), factor
    p = float(f_distribution.sf(f, *design.freedom)) if several else None
    return Exchange(f, design.freedom, p, max(least, as_large), least, shifts)


def _orders(counts: list[int]) -> Iterator[list[int]]:
    """All orders of kinds of which there are so many."""
    if not any(counts):
        yield []
    for kind, count in enumerate(counts):
        if count:
            left = [*counts[:kind], count - 1, *counts[kind + 1 :]]
            yield from ([kind, *rest] for rest in _orders(left))


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
        kind: Kinds,
        place: Kinds,
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

    def exchanges(self) -> int:
        """In how many ways types can be exchanged within blocks."""
        count = 1
        for own in self._by_block():
            count *= math.factorial(len(own))
            for each in np.bincount(own).tolist():
                count //= math.factorial(each)
        return count

    def renamings(self) -> int:
        """How many of them only rename types, and so have the same F."""
        counts = np.stack([np.bincount(own, minlength=self._kinds) for own in self._by_block()])
        orders = permutations(range(self._kinds))
        return sum(bool((counts[:, list(order)] == counts).all()) for order in orders)

    def every_exchange(self) -> Iterator[Kinds]:
        """The types of all runs, exchanged in each of these ways."""
        ways = [list(_orders(np.bincount(own).tolist())) for own in self._by_block()]
        order = np.argsort(self._place, kind="stable")
        for chosen in product(*ways):
            kinds = np.empty_like(self.kind)
            kinds[order] = [kind for own in chosen for kind in own]
            yield kinds

    def _by_block(self) -> list[Kinds]:
        """The types of the runs of each block."""
        return [self.kind[self._place == number] for number in range(len(self._count))]

    def shuffled(self, random: np.random.Generator) -> Kinds:
        """Types exchanged within blocks."""
        order = np.lexsort((random.random(len(self.kind)), self._place))
        into = np.lexsort((np.arange(len(self.kind)), self._place))
        kinds = np.empty_like(self.kind)
        kinds[into] = self.kind[order]
        return kinds

    def f(self, kind: Kinds) -> float:
        """The F statistic if the runs had these types."""
        each = np.eye(self._kinds)[kind][:, 1:]
        columns = [each, each * self._x[:, None]][: self._slopes]
        design = self._less_mean(np.concatenate(columns, axis=1))
        found, *_ = np.linalg.lstsq(design, self.within, rcond=None)
        all_alike = float(np.square(self.within).sum())
        apart = float(np.square(self.within - design @ found).sum())
        first, second = self.freedom
        return (all_alike - apart) / first / max(apart / second, 1e-300)
