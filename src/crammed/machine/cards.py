"""What is known about graphics cards without having one: peaks, memory, bandwidth.

Figures are the manufacturer's, except for the peaks of the paper's three cards, which are the
paper's own (Geiping and Goldstein 2022, section 2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from crammed.errors import InputError
from crammed.hints import did_you_mean

TERA, GIGA, GIB = 1e12, 1e9, 2**30


@dataclass(frozen=True)
class Card:
    """A graphics card.

    Attributes:
        name: words that all occur in PyTorch's name for it.
        teraflops: peak of dense 16-bit matrix products with 32-bit accumulation, in TFLOP/s.
        gibibytes: memory.
        gigabytes_per_second: memory bandwidth.
        capability: CUDA compute capability.
        published: published tokens per second of the paper's encoder in its authors' program, if
            any.
    """

    name: str
    teraflops: float
    gibibytes: int
    gigabytes_per_second: float
    capability: tuple[int, int]
    published: float | None = None

    @property
    def peak(self) -> float:
        """FLOP/s of 16-bit matrix products."""
        return self.teraflops * TERA

    @property
    def memory(self) -> int:
        """Bytes of memory."""
        return self.gibibytes * GIB

    @property
    def half(self) -> str:
        """The 16-bit format that it multiplies in hardware."""
        return "bfloat16" if self.capability >= (8, 0) else "float16"

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth in bytes per second."""
        return self.gigabytes_per_second * GIGA


CARDS = (
    Card("H200", 989.0, 141, 4800.0, (9, 0)),
    Card("H100 PCIe", 756.0, 80, 2039.0, (9, 0)),
    Card("H100", 989.0, 80, 3350.0, (9, 0), published=258_700.0),  # uncompiled, PyTorch 2.2
    Card("A100", 312.0, 40, 1555.0, (8, 0)),
    Card("A100 80GB", 312.0, 80, 2039.0, (8, 0)),
    Card("RTX 4090", 165.2, 24, 1008.0, (8, 9)),
    Card("RTX A6000", 154.8, 48, 768.0, (8, 6), published=103_200.0),  # compiled, PyTorch 2.0
    Card("RTX A4000", 88.45, 16, 448.0, (8, 6)),
    Card("RTX 2080 Ti", 53.8, 11, 616.0, (7, 5)),
    Card("V100", 125.0, 16, 900.0, (7, 0)),
    Card("TITAN RTX", 130.5, 24, 672.0, (7, 5)),
)


def known_card(name: str) -> Card | None:
    """The card with the most words, all of which occur in a device's name; None if there is none.

    Their order does not matter: an A100 with 80 GB calls itself ``NVIDIA A100-SXM4-80GB``.
    """
    words = _words(name)
    known = [card for card in CARDS if _words(card.name) <= words]
    return max(known, key=lambda card: len(_words(card.name)), default=None)


def _words(name: str) -> set[str]:
    """Words of a name, in lower case; ``80 GB`` is one of them."""
    return set(re.findall(r"\w+", re.sub(r"(\d) gb\b", r"\1gb", name.lower())))


def card_called(name: str) -> Card:
    """The card that a user's name for it means, which may be a part of it, such as ``4090``.

    Raises:
        InputError: it means no card, or more than one.
    """
    if (card := known_card(name)) is not None:
        return card
    meant = [card for card in CARDS if name.strip() and name.strip().lower() in card.name.lower()]
    if not meant:
        names = [card.name for card in CARDS]
        hint, among = did_you_mean(name, names), ", ".join(names)
        raise InputError(
            f"--device {name}: no card of this name is known; {hint}name one of {among}"
        )
    if len(meant) > 1:
        raise InputError(f"--device {name}: name one of {', '.join(card.name for card in meant)}")
    return meant[0]
