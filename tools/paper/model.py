"""A model of the time that launches take, and the parts of a step that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from crammed.machine.cards import Card
from crammed.planning.oncard import ATTENTION, BANDWIDTH, LAUNCH, PRODUCTS
from kernel_parts import part_of
from paper import launches
from paper.launches import Launch

EIGHT_BITS = 1.68
"""How many times as fast a layer's product is in 8 bits as in 16: one H200 reached 1,214 to 1,258
TFLOP/s where 16 bits reached 727 to 740."""


@dataclass(frozen=True)
class Sum:
    """The totals of the launches of one part."""

    launches: int = 0
    read: int = 0
    written: int = 0
    flops: int = 0
    seconds: float = 0.0

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            self.launches + other.launches,
            self.read + other.read,
            self.written + other.written,
            self.flops + other.flops,
            self.seconds + other.seconds,
        )


def seconds(launch: Launch, card: Card) -> float:
    """Seconds for its FLOPs or its bytes, whichever take longer, but no less than launching takes.

    Rates are those of `crammed.planning.oncard`; 8-bit products are `EIGHT_BITS` times as fast.
    """
    rate = ATTENTION if launches.ATTENTION in launch.name else PRODUCTS
    rate *= EIGHT_BITS if "scaled_mm" in launch.name else 1
    moving = launch.moved / (BANDWIDTH * card.bandwidth)
    return max(LAUNCH * launch.kernels, launch.flops / (rate * card.peak), moving)


def part(launch: Launch) -> str:
    """The part of the step that a launch belongs to."""
    if launch.flops:
        return "attention" if launches.ATTENTION in launch.name else "products"
    return part_of(launch.name) or "other"


def sums(counted: Mapping[Launch, int], card: Card) -> dict[str, Sum]:
    """The totals of launches by part, the longest first.

    Args:
        counted: how often each was launched.
    """
    found: dict[str, Sum] = {}
    for launch, times in counted.items():
        one = Sum(
            times * launch.kernels,
            times * launch.read,
            times * launch.written,
            times * launch.flops,
            times * seconds(launch, card),
        )
        found[part(launch)] = found.get(part(launch), Sum()) + one
    return dict(sorted(found.items(), key=lambda item: -item[1].seconds))


def between_products(found: Mapping[str, Sum]) -> Sum:
    """What moves besides products and attention."""
    rest = [each for name, each in found.items() if name not in ("products", "attention")]
    return sum(rest, Sum())


def one_more(fewer: list[Launch], more: list[Launch]) -> Counter[Launch]:
    """What the longer of two pieces of work launches beyond the shorter."""
    return Counter(more) - Counter(fewer)
