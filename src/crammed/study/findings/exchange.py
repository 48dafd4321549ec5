"""A permutation test: do the model types of a study differ, at equal size and FLOPs?

One curve for all: log losses depend on size and budget alone. A curve for each: every type also has
a shift, and a slope over log FLOPs, of its own. Types whose blocks cost more have spent more FLOPs
on the same tokens, so each loss is first moved to the mean FLOPs of its block (the runs of a size
and a budget), along the slope of the laws. A permutation test then exchanges seeds between types.

A seed is exchanged with all its runs: at every budget it begins with the same weights and reads the
same rows, so that its luck at one budget is partly its luck at the next. With one seed of each type
nothing can be tested. If there are few exchanges, all are tried.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        seeds: which these are.
    """

    type: str
    size: str
    label: str
    flops: float
    parameters: int
    losses: tuple[float, ...]
    seeds: tuple[str, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.losses)


@dataclass(frozen=True)
class Exchange:
    """The test of types.

    Attributes:
        seeds: how many seeds all types have at every size and budget.
        p: how many exchanges set types as far apart as they are; `least` is the smallest that can
            be attained.
        shifts: of each type, by how many percent its loss is above the mean of all, and how many
            times the FLOPs all types would need for the same loss.
    """

    seeds: int
    p: float
    least: float
    shifts: dict[str, tuple[float, float | None]]


def compare_types(cells: Sequence[Cell], slope: float) -> Exchange | None:
    """Test whether one curve describes all types as well as a curve for each does.

    Only sizes and budgets that all types have count, and only seeds that all of these have.

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
    used = [cell for block in whole for cell in block]
    if len(kinds) < 2 or not used:
        return None
    seeds = [each for each in used[0].seeds if all(each in cell.seeds for cell in used)]
    if not seeds:
        return None
    x = np.array([statistics.fmean(math.log(cell.flops) for cell in block) for block in whole])
    logs = np.zeros((len(kinds), len(seeds), len(whole)))
    for place, block in enumerate(whole):
        for cell in block:
            own = np.log([cell.losses[cell.seeds.index(each)] for each in seeds])
            logs[kinds.index(cell.type), :, place] = own + slope * (math.log(cell.flops) - x[place])
    within = (logs - logs.mean((0, 1))).reshape(-1, len(whole))
    p, least = _tested(within, x - x.mean(), len(kinds))
    shifts = {}
    for name, own in zip(kinds, np.split(within, len(kinds)), strict=True):
        shift = float(own.mean())
        factor = math.exp(min(-shift / slope, 50.0)) if slope > 0.0 else None
        shifts[name] = 100 * math.expm1(shift), factor
    return Exchange(len(seeds), p, least, shifts)


def _tested(within: Numbers, x: Numbers, kinds: int) -> tuple[float, float]:
    """`Exchange.p` and `Exchange.least`.

    Args:
        within: log losses less the mean of their block, [T, B] of T seeds of types in B blocks;
            those of a type follow one another.
        x: log FLOPs of the blocks less their mean, [B].
    """
    each = len(within) // kinds
    types = np.repeat(np.arange(kinds), each)
    count = math.factorial(len(types)) // math.factorial(each) ** kinds
    real = _apart(within, x, types)
    if count <= SHUFFLES:
        tried = [_apart(within, x, np.array(order)) for order in _orders(kinds * [each])]
    else:
        random = np.random.default_rng((0, kinds))
        shuffled = (random.permutation(types) for _ in range(SHUFFLES))
        tried = [real, *(_apart(within, x, order) for order in shuffled)]
    least = max(math.factorial(kinds) / count, 1 / len(tried))  # other names change nothing
    return sum(value >= real * (1 - 1e-9) for value in tried) / len(tried), least


def _apart(within: Numbers, x: Numbers, types: Kinds) -> float:
    """What a shift and a slope for each type explain of the squares."""
    means = np.stack([within[types == kind].mean(0) for kind in range(types.max() + 1)])
    steep = np.square(means @ x).sum() / max(float(x @ x), 1e-300)
    return float(means.shape[1] * np.square(means.mean(1)).sum() + steep)


def _orders(counts: list[int]) -> Iterator[list[int]]:
    """All orders of kinds of which there are so many."""
    if not any(counts):
        yield []
    for kind, count in enumerate(counts):
        if count:
            left = [*counts[:kind], count - 1, *counts[kind + 1 :]]
            yield from ([kind, *rest] for rest in _orders(left))
