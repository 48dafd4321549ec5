"""Attention that begins with the neighbouring tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crammed.errors import InputError
from crammed.model.attention import NEIGHBOURS, Attention
from crammed.model.encoder import initialise
from crammed.training.update.build import new_model
from support.text import tiny
from support.variants import configuration

CPU = torch.device("cpu")


def without_content(attention: Attention) -> Tensor:
    """How much each of 24 equal tokens attends to each, [H, S, S]."""
    tables = attention.position_encoding.tables(torch.arange(24))
    found = attention.probabilities(torch.zeros(1, 24, attention.width), tables, None)
    return found[0]


@settings(deadline=None)
@given(
    st.integers(1, 32), st.floats(10.0, 1e6), st.lists(st.integers(-6, 6), min_size=1, max_size=3)
)
def test_a_new_head_looks_most_at_its_distance(
    half: int, theta: float, distances: list[int]
) -> None:
    shape: dict[str, Any] = {"head_dim": 2 * half, "width": 2 * half * len(distances)}
    config = configuration(attention_start="neighbours", rotary_theta=theta, **shape)
    attention = Attention(config)
    initialise(attention, 0.02)
    attention.look_at(distances)
    places = torch.arange(6, 18)  # tokens that have another one at each of the distances
    for shares, distance in zip(without_content(attention), distances, strict=True):
        assert shares[places].argmax(-1).tolist() == (places + distance).tolist()


def attention_of(**fields: Any) -> list[Attention]:
    """That of a new model, layer by layer."""
    config = tiny("crammed").model_copy(update={"model": configuration(**fields)})
    modules = new_model(config, 256, CPU).modules()
    return [each for each in modules if isinstance(each, Attention)]


def test_heads_take_turns_over_all_layers() -> None:
    blocks = attention_of(attention_start="neighbours", layers=4, width=192, head_dim=64)
    shares = torch.cat([without_content(block) for block in blocks])
    assert len(shares) == 12
    for head, each in enumerate(shares):
        distance = NEIGHBOURS[head % len(NEIGHBOURS)]
        neighbours = each.diagonal(distance)[3:-3]
        assert (neighbours > 0.9).all(), (head, distance)


def test_later_layers_may_begin_at_random() -> None:
    shape = {"layers": 3, "width": 128, "head_dim": 32}
    first, *later = attention_of(attention_start="neighbours-first", **shape)
    for each, distance in zip(without_content(first), NEIGHBOURS, strict=True):
        assert (each.diagonal(distance)[3:-3] > 0.8).all(), distance
    assert len(later) == 2
    assert not any(block.qkv.bias.any() for block in later)


def test_the_token_after_is_at_distance_one() -> None:
    attention = Attention(configuration(attention_start="neighbours"))
    initialise(attention, 0.02)
    attention.look_at([1] * (attention.width // attention.head_dim))
    value = attention.width * 2
    with torch.no_grad():  # values and output are the tokens themselves
        attention.qkv.weight.zero_()
        attention.qkv.weight[value:] = torch.eye(attention.width)
        attention.out.weight.copy_(torch.eye(attention.width))
    x = torch.zeros(1, 8, attention.width)
    x[0, 5] = 1.0
    mixed = attention(x, attention.position_encoding.tables(torch.arange(8)), None)
    assert mixed[0].sum(-1).argmax() == 4


def test_nothing_else_begins_otherwise() -> None:
    configs = [tiny("crammed", f"model.attention_start={n}") for n in ("random", "neighbours")]
    one, other = (dict(new_model(each, 256, CPU).named_parameters()) for each in configs)
    for name, parameter in one.items():
        if name.endswith("qkv.bias"):
            assert not parameter.any()
            queries, keys, values = other[name].chunk(3)
            assert queries.any()
            assert keys.any()
            assert not values.any()
        else:
            assert torch.equal(parameter, other[name]), name


@pytest.mark.parametrize("lacks", ["qkv_bias=false", "positions=none", "qk_norm=rms"])
def test_a_model_that_cannot_begin_so_is_refused(lacks: str) -> None:
    wanted = r"needs model\.qkv_bias=true, model\.positions=rotary and model\.qk_norm=none"
    words = ("model.attention_start=neighbours", "model.qkv_bias=true", f"model.{lacks}")
    with pytest.raises(InputError, match=wanted):
        tiny("crammed", *words)
