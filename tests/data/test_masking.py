from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from crammed.config import MaskingConfig
from crammed.data.collocations import Collocations, hashes
from crammed.data.masking import (
    MaskedRows,
    Masker,
    keyed_bits,
    predicted_positions,
    shuffled,
)
from crammed.keys import key
from support.variants import choices

VOCAB, SPECIALS, MASK = 97, 5, 4


def masked(
    rows: torch.Tensor,
    first: int = 0,
    seed: int = 0,
    rate: float = 0.25,
    corruption: str = "80-10-10",
) -> MaskedRows:
    masker = Masker(seed, corruption, MASK, range(SPECIALS), VOCAB)
    numbers = torch.arange(first, first + len(rows))
    return masker(rows, numbers, predicted_positions(rate, rows.shape[1]))


def some_rows(count: int, length: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(SPECIALS, VOCAB, (count, length), generator=draw)


def slow_bits(seed: int, row: int, column: int) -> int:
    """The hash in plain integers."""

    def mix(x: int) -> int:
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
        x = (((x >> 16) ^ x) * 0x45D9F3B) & 0xFFFFFFFF
        return (x >> 16) ^ x

    word = key(seed, "mask")
    state = mix((row & 0xFFFFFFFF) ^ (word & 0xFFFFFFFF))
    state = mix(state ^ (row >> 32) ^ (word >> 32))
    state = mix(state ^ mix(column + 1))
    return mix(state ^ (word & 0xFFFFFFFF))


@given(st.integers(0, 2**40), st.integers(0, 2**62), st.integers(1, 12))
def test_bits_equal_plain_integers(row: int, seed: int, columns: int) -> None:
    bits = keyed_bits(key(seed, "mask"), torch.tensor([row]), columns)
    assert bits.tolist() == [[slow_bits(seed, row, c) for c in range(columns)]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_positions_are_sorted_by_bits_and_then_by_place(
    bits: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(bits)))
    slow = sorted(range(len(bits)), key=lambda place: (bits[place], place))[:count]
    assert shuffled(torch.tensor([bits]), count).tolist() == [slow]


def test_masks_are_compiled_without_a_sort() -> None:
    # For a GPU, the compiler writes a sort out, which takes most of a minute.
    graph = make_fx(lambda rows: masked(rows).ids)(some_rows(2, 128)).graph
    operators = {str(node.target) for node in graph.nodes}
    assert "aten.topk.default" in operators
    assert not [name for name in operators if "sort" in name]


def test_bits_are_uniform_and_unrelated() -> None:
    bits = keyed_bits(key(0, "mask"), torch.arange(20000), 8).double() / 2**32
    assert abs(bits.mean().item() - 0.5) < 0.005
    assert abs(bits.var().item() - 1 / 12) < 0.001
    together = torch.corrcoef(torch.cat((bits, bits.roll(1, 0)), 1).T)
    off_diagonal = together - torch.eye(16, dtype=torch.double)
    assert off_diagonal.abs().max() < 0.04
    deciles = torch.histc(bits.float(), 10, 0, 1) / bits.numel()
    assert (deciles - 0.1).abs().max() < 0.005


@settings(max_examples=40)
@given(st.integers(2, 40), st.floats(0.01, 0.9), st.integers(0, 1000))
def test_counts_labels_and_everything_else(length: int, rate: float, seed: int) -> None:
    rows = some_rows(6, length, seed)
    result = masked(rows, seed=seed, rate=rate)
    count = predicted_positions(rate, length)
    assert result.positions.shape == result.labels.shape == (6, count)
    assert torch.equal(rows.gather(1, result.positions), result.labels)
    chosen = torch.zeros_like(rows, dtype=torch.bool).scatter(1, result.positions, True)
    assert (chosen.sum(1) == count).all()  # no position twice
    assert torch.equal(result.ids[~chosen], rows[~chosen])


def test_80_10_10_is_exact_in_every_row() -> None:
    rows = some_rows(200, 128)
    result = masked(rows)
    corrupted = result.ids.gather(1, result.positions)
    assert (corrupted[:, :26] == MASK).all()
    assert (corrupted[:, 29:] == result.labels[:, 29:]).all()
    random = corrupted[:, 26:29]
    assert random.min() >= SPECIALS
    assert random.max() == VOCAB - 1
    assert (random != result.labels[:, 26:29]).float().mean() > 0.95


def test_all_mask_replaces_every_chosen_token() -> None:
    result = masked(some_rows(20, 128), corruption="all-mask")
    assert (result.ids.gather(1, result.positions) == MASK).all()


def test_every_place_is_equally_likely() -> None:
    result = masked(some_rows(20000, 16))
    share = torch.bincount(result.positions.flatten(), minlength=16) / 20000
    assert (share - 0.25).abs().max() < 0.015


@pytest.mark.parametrize("split", [1, 3, 7])
def test_masks_do_not_depend_on_the_microbatch(split: int) -> None:
    rows = some_rows(21, 64)
    whole = masked(rows, first=1000)
    parts = [masked(part, first=1000 + split * n) for n, part in enumerate(rows.split(split))]
    assert torch.equal(whole.ids, torch.cat([part.ids for part in parts]))
    assert torch.equal(whole.positions, torch.cat([part.positions for part in parts]))


def test_random_tokens_are_any_but_the_special_ones() -> None:
    specials = (0, 50, 96, 51, 7)
    masker = Masker(0, "80-10-10", 50, specials, VOCAB)
    rows = torch.full((400, 64), 1)
    ids = masker(rows, torch.arange(400), 32).ids
    drawn = set(ids[(ids != 50) & (ids != 1)].tolist())
    assert drawn | {1} == set(range(VOCAB)) - set(specials)


def test_another_seed_or_a_later_visit_gives_other_masks() -> None:
    rows = some_rows(50, 64)
    base = masked(rows).positions
    assert not torch.equal(base, masked(rows, seed=1).positions)
    assert not torch.equal(base, masked(rows, first=50).positions)


def test_every_way_of_corruption_differs() -> None:
    rows = some_rows(20, 40)
    ways = choices(MaskingConfig)["corruption"]
    seen = [masked(rows, corruption=way).ids for way in ways]
    for one, other in itertools.combinations(seen, 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("unit", ["word", "span", "pmi"])
def test_words_and_spans_are_masked_whole(unit: str) -> None:
    begins = torch.arange(VOCAB) % 3 != 0
    begins[:SPECIALS] = True
    count, rows = 10, some_rows(40, 48)
    groups = {tuple(rows[0, 3:5].tolist()), tuple(rows[1, 4:9].tolist())} if unit == "pmi" else {}
    numbers = [hashes(torch.tensor([group]), len(group))[0, 0] for group in groups]
    table = Collocations(begins, torch.tensor(sorted(numbers))) if groups else begins
    masker = Masker(3, "all-mask", MASK, range(SPECIALS), VOCAB, unit=unit, begins=table)
    found = masker(rows, torch.arange(7, 47), count)
    cuts = keyed_bits(key(3, "span"), torch.arange(7, 47), 48)
    bits = keyed_bits(key(3, "mask"), torch.arange(7, 47), 49).tolist()
    for number, row in enumerate(rows.tolist()):
        units: list[list[int]] = [[]]
        for place, token in enumerate(row):
            cut = unit != "span" or bool(cuts[number, place] < 2**32 / 3.8)
            cut = cut and not any(
                tuple(row[place - before : place - before + len(group)]) == group
                for group in groups
                for before in range(1, min(place, len(group) - 1) + 1)
            )
            if begins[token] and cut:
                units.append([])
            units[-1].append(place)
        order = sorted(range(len(units)), key=lambda u: bits[number][u])
        expected = [place for u in order for place in units[u]][:count]
        assert sorted(found.positions[number].tolist()) == sorted(expected)
    assert torch.equal(found.labels, rows.gather(1, found.positions))
    assert found.positions.tolist() != found.positions.sort(1).values.tolist()  # in random order
    alone = masker(rows[5:6], torch.tensor([12]), count)
    assert torch.equal(alone.positions, found.positions[5:6])
