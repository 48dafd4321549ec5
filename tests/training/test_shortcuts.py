"""Ways through the layers that leave out work, against plain ones that do all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crammed.config import ModelConfig, RunConfig
from crammed.machine.device import Device
from crammed.model.count import run_flops_per_token, train_flops_per_token
from crammed.model.encoder import MaskedLM
from crammed.training.update.shortcuts import Shortcuts
from support.steps import check_compiled, check_microbatches, needs_compiler
from support.text import tiny
from support.variants import LENGTH, VOCAB, configuration, random_model, some_ids

CPU = torch.device("cpu")


def run_of(model: ModelConfig, **train: Any) -> RunConfig:
    """A run with this model, and rows of `LENGTH` tokens."""
    base = tiny("crammed").model_dump()
    base["model"], base["train"] = model.model_dump(), {**base["train"], **train}
    base["data"]["row_length"] = base["finetune"]["max_length"] = LENGTH
    return RunConfig.model_validate(base)


def places_of(rows: int) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.stack([torch.randperm(LENGTH, generator=draw)[:4] for _ in range(rows)])


DROPPING = [
    {},
    *({"positions": p} for p in ("learned", "scaled-sinusoidal", "alibi", "t5")),
    {"scope": "causal"},
    {"key_heads": 1, "attention_start": "random", "value_embeddings": False},
    {"value_embeddings": True, "residual_scalars": True},
    {"norm": "post", "qk_norm": "rms", "passes": 2, "first_attention_norm": True},
    {"weighing": "relu"},
]


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("fields", DROPPING, ids=str)
def test_dropping_is_hiding_tokens_from_the_middle_layers(
    fields: dict[str, Any], documents: bool
) -> None:
    config = run_of(configuration(**{"layers": 4, **fields}), drop_tokens=0.5)
    model, ids, numbers = random_model(config.model), some_ids(3), torch.tensor([7, 2**33, 9])
    predicted, mask = places_of(3), None
    if documents:
        part = (torch.arange(LENGTH) > torch.tensor([[4], [9], [12]])).int()
        mask = part[:, :, None] == part[:, None, :]
    shortcuts, encoder = Shortcuts(config, CPU), model.encoder
    found = shortcuts.encode(encoder, ids, mask, predicted, numbers, None)

    kept = shortcuts._kept(predicted, numbers, LENGTH, 8)
    seen = torch.zeros_like(ids, dtype=torch.bool).scatter(1, kept, True)
    assert (seen.sum(1) == 8).all()
    assert seen.gather(1, predicted).all()
    again = shortcuts._kept(predicted[1:], numbers[1:], LENGTH, 8)  # in another microbatch
    assert torch.equal(again, kept[1:])
    x, tables, allowed, *more = encoder.prepare(encoder.tokens(ids), mask, None, ids)
    few = seen[:, None, None, :].expand(-1, -1, LENGTH, -1)
    few = few if allowed is None else few & allowed
    few = few | torch.eye(LENGTH, dtype=torch.bool)  # or a token may see nothing
    layers = encoder.in_turn()
    for n, layer in enumerate(layers):
        if len(layers) // 2 <= n < len(layers) - 1:
            x = torch.where(seen[..., None], layer(x, tables, few, *more), x)
        else:
            x = layer(x, tables, allowed, *more)
    torch.testing.assert_close(found, encoder.final_norm(x))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_depth_without_middle_layers_computes_all_tokens(layers: int) -> None:
    """As a model that grows has at first."""
    config = run_of(configuration(layers=4), drop_tokens=0.5, grow_at=[0.25, 0.5])
    encoder, ids = random_model(config.model).encoder, some_ids(2)
    encoder.depth = layers
    found = Shortcuts(config, CPU).encode(encoder, ids, None, places_of(2), torch.arange(2), None)
    assert torch.equal(found, encoder(ids))


def trained_flops(config: RunConfig, model: MaskedLM) -> float:
    """Forward FLOPs of a row."""
    predicted, numbers = places_of(2), torch.arange(2)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        encode = Shortcuts(config, CPU).encode
        hidden = encode(model.encoder, some_ids(2), None, predicted, numbers, None)
        model.decode(hidden[:, :4])
    return float(forward.get_total_flops()) / (2 * LENGTH)


@pytest.mark.parametrize("drop", [0.25, 0.5, 0.9])
def test_the_flops_of_dropping_are_those_of_the_modules(drop: float) -> None:
    model = configuration(layers=5)
    config = run_of(model, drop_tokens=drop)
    counted = run_flops_per_token(config, VOCAB, 4)
    assert 3 * trained_flops(config, random_model(model)) == pytest.approx(counted)
    assert counted < train_flops_per_token(model, VOCAB, LENGTH, 4)


def test_earlier_passes_get_no_gradients_and_cost_a_third() -> None:
    model = configuration(passes=3, residual_scalars=True, layers=2)
    config = run_of(model, learned_passes=2)
    ours, theirs, ids = random_model(model), random_model(model), some_ids(2)
    Shortcuts(config, CPU).encode(
        ours.encoder, ids, None, places_of(2), torch.arange(2), None
    ).square().sum().backward()
    encoder = theirs.encoder
    x, *given = encoder.prepare(encoder.tokens(ids), None, None, ids)
    for n, layer in enumerate(encoder.in_turn()):
        x = layer(x, *given)
        x = x.detach() if n == 1 else x
    encoder.final_norm(x).square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    whole, last = (
        train_flops_per_token(model.model_copy(update={"passes": n}), VOCAB, LENGTH, 4)
        for n in (3, 2)
    )
    assert run_flops_per_token(config, VOCAB, 4) == pytest.approx(whole / 3 + 2 * last / 3)


WORDS = [
    "model.layers=3 train.drop_tokens=0.5 train.attention=document",
    "model.passes=2 train.learned_passes=1 model.residual_scalars=true "
    "model.first_attention_norm=true",
]


@pytest.mark.parametrize("words", WORDS)
def test_updates_do_not_depend_on_the_microbatch(cpu: Device, words: str) -> None:
    check_microbatches(tiny("crammed", *words.split()), cpu)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("words", WORDS)
def test_compiled_updates_are_the_same(cpu: Device, words: str) -> None:
    check_compiled(tiny("crammed", *words.split()), cpu)
