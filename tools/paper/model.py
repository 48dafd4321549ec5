"""A model of the time that launches take, and the parts of a step that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from crammed.machine.cards import Card
from crammed.planning.oncard import ATTENTION, BANDWIDTH, LAUNCH, PRODUCTS
from kernel_parts import part_of
from paper import launches
from paper.launches import Launch

EIGHT_BITS = 1.68
"""How many times as fast a layer's product is in 8 bits as in 16: one H200 reached 1,214 to 1,258
TFLOP/s where 16 bits reached 727 to 740."""
Sums = dict[str, float]
"""Totals of launches, by what is counted."""
COUNTED = ("launches", "read", "written", "flops", "seconds")


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


def sums(counted: Mapping[Launch, int], card: Card) -> dict[str, Sums]:
    """The totals of launches, each counted so often, by part, the longest first."""
    found: dict[str, Sums] = {}
    for launch, times in counted.items():
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
