"""Groups of words that belong together, against a count of tuples in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from crammed.data import collocations
from crammed.data.collocations import _belonging, collocations_of, hashes
from crammed.data.corpus import Corpus
from crammed.machine.device import Device
from crammed.training.update.build import build_for
from support.steps import update_of
from support.text import tiny

Words = tuple[int, ...]


def text() -> torch.Tensor:
    """Random tokens, in which three groups often occur, one with a token that goes on a word."""
    draw = torch.Generator().manual_seed(2)
    rows = torch.randint(5, 40, (300, 24), generator=draw)
    for number, group in enumerate(((40, 41), (42, 6, 43), (44, 45, 46, 47, 48, 49))):
        rows[number::3, 4 : 4 + len(group)] = torch.tensor(group)
    rows[::7, 20] = 3
    return rows


def cuts(words: Words) -> Iterator[tuple[Words, ...]]:
    """All ways to cut words into parts, the whole included."""
    yield (words,)
    for size in range(1, len(words)):
        for rest in cuts(words[size:]):
            yield (words[:size], *rest)


def number_of(words: Words) -> int:
    return int(hashes(torch.tensor([words]), len(words)).item())


def test_groups_are_those_of_a_plain_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collocations, "SHARE", 0.15)
    rows, begins = text(), torch.ones(50, dtype=torch.bool)
    begins[[41, 43, 45]] = False
    lists = rows.tolist()
    counts: dict[int, Counter[Words]] = {size: Counter() for size in range(1, 6)}
    whole: Counter[Words] = Counter()
    for row in lists:
        for size, counter in counts.items():
            for first in range(len(row) - size + 1):
                words = tuple(row[first : first + size])
                counter[words] += 1
                after = row[first + size] if first + size < len(row) else 5
                starts = [bool(begins[word]) for word in words]
                if starts[0] and sum(starts) > 1 and begins[after] and min(words) >= 5:
                    whole[words] += 1

    def share(words: Words) -> float:
        return math.log(counts[len(words)][words] / counts[len(words)].total())

    belonging = {
        words: share(words) - max(sum(map(share, cut)) for cut in cuts(words) if len(cut) > 1)
        for words, count in whole.items()
        if count >= 10
    }
    known = [torch.unique(hashes(rows, size), return_counts=True) for size in range(1, 6)]
    for words, score in belonging.items():
        assert _belonging(torch.tensor([words]), known).item() == pytest.approx(score, abs=1e-4)
    ranked = sorted(belonging.values(), reverse=True)
    numbers = {number_of(words): score for words, score in belonging.items()}
    found = collocations_of(rows, begins, range(5))
    kept = [numbers[number] for number in found._groups.tolist()]
    assert sorted(kept, reverse=True) == pytest.approx(ranked[: len(kept)], abs=1e-4)
    assert found.share(rows) >= 0.15
    assert 0 < len(kept) < len(ranked)
    groups = {words for words in belonging if number_of(words) in found._groups.tolist()}
    inside = torch.zeros_like(rows, dtype=torch.bool)
    for n, row in enumerate(lists):
        for first in range(len(row)):
            for size in range(2, 6):
                if tuple(row[first : first + size]) in groups:
                    inside[n, first + 1 : first + size] = True
    assert torch.equal(found[rows], begins[rows] & ~inside)


def test_text_without_groups_masks_words() -> None:
    rows, begins = torch.arange(100).reshape(10, 10), torch.arange(100) % 2 == 0
    assert torch.equal(collocations_of(rows, begins, ())[rows], begins[rows])


def test_a_run_masks_the_groups_of_its_corpus(corpus: Corpus, cpu: Device) -> None:
    losses = set()
    for unit in ("pmi", "pmi", "word", "token"):
        step = build_for(tiny("crammed", f"masking.unit={unit}"), corpus, cpu)
        rows = torch.from_numpy(corpus.read(torch.arange(8).numpy()))
        losses.add(step.gradients(rows, update_of(8)).item())
    assert len(losses) == 3
