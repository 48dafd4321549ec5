"""Counts the steps of training loops, with a model of their time, for ``benchmarks/results``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from common import config_of, recipe_of
from crammed.config import RunConfig
from crammed.data.masking import predicted_positions
from crammed.machine.cards import Card, card_called
from crammed.model.count import parameters
from crammed.model.traffic import attention_bytes, traffic
from crammed.planning.oncard import ATTENTION, BANDWIDTH, LAUNCH, PRODUCTS
from crammed.runs.environment import environment
from kernel_parts import part_of
from paper import launches
from paper.compiler import paper
from paper.launches import Launch, Noted
from paper.loops import Update, loop_of, loops

Json = dict[str, Any]
EIGHT_BITS = 1.68
"""How many times as fast a layer's product is in 8 bits as in 16: one H200 reached 1,214 to 1,258
TFLOP/s where 16 bits reached 727 to 740."""
Sums = dict[str, float]
"""Totals of launches, by what is counted."""
COUNTED = ("launches", "read", "written", "flops", "seconds")


def counted(
    noted: Noted, words: list[str], names: list[str], rows: int, card: str, kernels: int
) -> Json:
    """Count one more microbatch of each loop; the options are those of `step_on_paper`."""
    made = [*words, f"compute.microbatch_rows={rows}", "compute.device=cuda"]
    config, rates = config_of(made, "crammed-2022"), card_called(card)
    vocab, length = config.tokenizer.vocab_size, config.data.row_length
    predicted = rows * predicted_positions(config.masking.rate, length)
    fewest = traffic(config.model, vocab, rows * length, predicted, 2, 2)
    return {
        "name": "paper",
        "environment": environment(),
        "device": f"counted for {rates.name}",
        "dtype": "bfloat16",
        "recipe": config.recipe,
        "overrides": recipe_of(words, "crammed-2022")[1],
        "parameters": parameters(config.model, vocab),
        "row_length": length,
        "rows": rows,
        "fewest_bytes": fewest | {"attention": attention_bytes(config.model, rows * length, 2)},
        "loops": {
            name: _counted(noted, name, config, rates, kernels)
            for name in (loops() if names == ["all"] else names)
        },
    }


def _counted(noted: Noted, name: str, config: RunConfig, card: Card, kernels: int) -> Json:
    with paper(noted):
        update = loop_of(name, config)
        update(1)  # compiles, and makes the optimizer's moments
        launched = _of_microbatch(noted, update)
    found = sums(launched, card)
    whole, between = total(found.values()), between_products(found)
    rows = config.compute.microbatch_rows
    assert rows is not None
    tokens = rows * config.data.row_length
    return {
        "launches": whole["launches"],
        "flops": whole["flops"],
        "between_products_bytes": between["read"] + between["written"],
        "seconds": whole["seconds"],
        "tokens_per_second": tokens / whole["seconds"],
        "parts": {
            name: {key: value for key, value in each.items() if key != "flops"}
            for name, each in found.items()
        },
        "kernels": _listed(launched, kernels),
    }


def _of_microbatch(noted: Noted, update: Update) -> Counter[Launch]:
    """What an update of two microbatches launches beyond an update of one."""
    both = []
    for microbatches in (1, 2):
        update(microbatches)  # a loop may compile for each
        with noted.listening() as launched:
            update(microbatches)
        both.append(Counter(launched))
    return both[1] - both[0]


def _listed(launched: Counter[Launch], count: int) -> list[Json]:
    """The launches that move most; products and attention come last."""
    ordered = sorted(launched.items(), key=lambda item: (item[0].flops, -item[0].moved * item[1]))
    return [
        {
            "kernel": launch.name,
            "where": launch.where,
            "part": part(launch),
            "times": times,
            "read": launch.read,
            "written": launch.written,
            **({"shape": launch.shape} if launch.shape else {}),
        }
        for launch, times in ordered[:count]
    ]


def seconds(launch: Launch, card: Card) -> float:
    """Seconds for its FLOPs or its bytes, whichever take longer, or at least for launching it."""
    rate = ATTENTION if launches.ATTENTION in launch.name else PRODUCTS
    rate *= EIGHT_BITS if "scaled_mm" in launch.name else 1
    moving = launch.moved / (BANDWIDTH * card.bandwidth)
    return max(LAUNCH * launch.kernels, launch.flops / (rate * card.peak), moving)


def part(launch: Launch) -> str:
    """The part of the step that a launch belongs to."""
    if launch.flops:
        return "attention" if launches.ATTENTION in launch.name else "products"
    return part_of(launch.name) or "other"


def sums(launched: Mapping[Launch, int], card: Card) -> dict[str, Sums]:
    """The totals of launches, each counted so often, by part, the longest first."""
    found: dict[str, Sums] = {}
    for launch, times in launched.items():
        one = (launch.kernels, launch.read, launch.written, launch.flops, seconds(launch, card))
        own = found.setdefault(part(launch), dict.fromkeys(COUNTED, 0))
        for key, value in zip(COUNTED, one, strict=True):
            own[key] += times * value
    return dict(sorted(found.items(), key=lambda item: -item[1]["seconds"]))


def total(found: Iterable[Sums]) -> Sums:
    every = list(found)
    return {key: sum(each[key] for each in every) for key in COUNTED}


def between_products(found: Mapping[str, Sums]) -> Sums:
    """What moves besides products and attention."""
    return total(each for name, each in found.items() if name not in ("products", "attention"))
