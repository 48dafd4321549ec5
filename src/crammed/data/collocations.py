"""Groups of words that belong together, which are masked as a whole (PMI; Levine et al. 2021).

A group is two to five tokens that are whole words and occur several times. It belongs together as
far as it is more frequent than its parts would make it by chance, into whatever parts it is cut.
The groups that do so most are used, as many as hold half of the tokens of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crammed.data.masking import mix

LONGEST = 5  # tokens of a group
FEWEST = 10  # times that a group has to occur
SHARE = 0.5  # of the tokens are in groups
MOST_TOKENS = 4_000_000  # of the text are counted
_SAMPLE = 2000  # rows in which the share is measured


def hashes(rows: Tensor, size: int) -> Tensor:
    """A number below 2**63 for each `size` consecutive tokens, [B, S - size + 1]."""
    count = rows.shape[1] - size + 1
    high = low = torch.full_like(rows[:, :count], size)
    for n in range(size):
        token = rows[:, n : n + count]
        high, low = mix(high ^ (2 * token + 1)), mix(low ^ (2 * token))
    return (high << 31) ^ low


def _among(numbers: Tensor, sorted_numbers: Tensor) -> Tensor:
    """The place of each number, or of another one if it is not there."""
    return torch.searchsorted(sorted_numbers, numbers).clamp(max=len(sorted_numbers) - 1)


class Collocations:
    """Where units begin: words, except within a group.

    Args:
        begins: [V], whether a token begins a word.
        groups: hashes of the groups, sorted.
    """

    def __init__(self, begins: Tensor, groups: Tensor) -> None:
        self._begins, self._groups = begins, groups

    def on(self, device: torch.device) -> Collocations:
        """The same for rows on this device."""
        return Collocations(self._begins.to(device), self._groups.to(device))

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Whether each token of rows [B, S] begins a unit, [B, S]."""
        return self._begins[rows] & ~self._inside(rows)

    def _inside(self, rows: Tensor) -> Tensor:
        """Which tokens go on a group, [B, S]; groups that overlap become one."""
        inside = torch.zeros_like(rows, dtype=torch.bool)
        for size in range(2, min(LONGEST, rows.shape[1]) + 1):
            found = hashes(rows, size)
            found = self._groups[_among(found, self._groups)] == found
            for n in range(1, size):
                inside[:, n : n + found.shape[1]] |= found
        return inside

    def share(self, rows: Tensor) -> float:
        """The share of tokens that are in groups."""
        inside = self._inside(rows)
        first = torch.zeros_like(inside)
        first[:, :-1] = inside[:, 1:]
        return (inside | first).float().mean().item()


def collocations_of(rows: Tensor, begins: Tensor, specials: Sequence[int]) -> Collocations:
    """The groups of a text.

    Args:
        rows: [R, S] token ids.
        begins: as in `Collocations`.
        specials: ids that are in no group.
    """
    sizes = range(1, min(LONGEST, rows.shape[1]) + 1)
    known = [torch.unique(hashes(rows, size), return_counts=True) for size in sizes]
    ordinary = torch.isin(rows, torch.tensor(specials), invert=True)
    scores, groups = [torch.zeros(0)], [torch.zeros(0, dtype=torch.int64)]
    for size in sizes[1:]:
        starts = begins[rows].unfold(1, size, 1)
        whole = starts[..., 0] & (starts.sum(-1) > 1) & ordinary.unfold(1, size, 1).all(-1)
        whole[:, :-1] &= begins[rows[:, size:]]  # a row may end within a word
        found, which, counts = torch.unique(
            hashes(rows, size)[whole], return_inverse=True, return_counts=True
        )
        tokens = rows.new_empty((len(found), size))
        tokens[which] = rows.unfold(1, size, 1)[whole]
        often = counts >= FEWEST
        scores.append(_belonging(tokens[often], known))
        groups.append(found[often])
    ranked = torch.cat(groups)[torch.cat(scores).argsort(descending=True, stable=True)]
    few, many = 0, len(ranked)
    while few < many:  # the fewest that hold the share
        middle = (few + many) // 2
        held = Collocations(begins, _sorted(ranked[:middle])).share(rows[:_SAMPLE])
        few, many = (few, middle) if held >= SHARE else (middle + 1, many)
    return Collocations(begins, _sorted(ranked[:few]))


def _sorted(groups: Tensor) -> Tensor:
    return groups.sort().values if len(groups) else torch.full((1,), -1)  # which is no hash


def _belonging(tokens: Tensor, known: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """By how much sequences [U, N] are more probable than their most probable parts (a log).

    `known` has the sorted hashes of all sequences of each length, and how often each occurs.
    """
    size = tokens.shape[1]
    best: dict[tuple[int, int], Tensor] = {}
    for length in range(1, size + 1):
        numbers, counts = known[length - 1]
        for first in range(size - length + 1):
            last = first + length
            place = _among(hashes(tokens[:, first:last], length)[:, 0], numbers)
            whole = (counts[place] / counts.sum()).log()
            cuts = [best[first, cut] + best[cut, last] for cut in range(first + 1, last)]
            parts = torch.stack(cuts).amax(0) if cuts else whole
            best[first, last] = torch.maximum(whole, parts)
    return whole - parts
