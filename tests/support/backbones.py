"""Models to evaluate, and their tokens as batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.tokens import Tokenized

RECIPES = ("crammed", "bert-base", "crammed-2022")
TEXTS = [
    ("two boats at night", "the old sailor counts every letter in the garden"),
    ("the red fox",),
    ("my neighbour repairs seven lanterns under the bridge", "a quiet girl"),
]
Load = Callable[[str], Backbone]


def row(tokens: Tokenized, n: int) -> tuple[Tensor, Tensor | None]:
    part = slice(tokens.offsets[n], tokens.offsets[n + 1])
    types = None if tokens.types is None else torch.from_numpy(tokens.types[part]).long()
    return torch.from_numpy(tokens.ids[part]).long(), types


def batch(
    tokens: Tokenized, which: list[int], pad: int, width: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    ids = torch.full((len(which), width), pad)
    mask = torch.zeros(len(which), width, dtype=torch.bool)
    types = torch.zeros_like(ids)
    for place, n in enumerate(which):
        one, kinds = row(tokens, n)
        ids[place, : len(one)] = one
        mask[place, : len(one)] = True
        if kinds is not None:
            types[place, : len(one)] = kinds
    return ids, mask, None if tokens.types is None else types
