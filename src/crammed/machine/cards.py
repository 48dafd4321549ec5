"""What is known about graphics cards without having one: peaks, memory, bandwidth.

Figures are the manufacturer's, from data sheets and white papers, except for the peaks of the
paper's three cards, which are the paper's own (Geiping and Goldstein 2022, section 2). Peaks are
without sparsity. GeForce cards have half of the advertised peak, because they add up in 32 bits at
half speed. Where no white paper states that rate, as for most of the RTX 30 series, it is counted
from a data sheet: 512 FLOPs per multiprocessor and cycle, at the boost clock.
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
    Card("B200", 2250.0, 180, 8000.0, (10, 0)),
    Card("H200", 989.0, 141, 4800.0, (9, 0)),
    Card("H200 NVL", 835.0, 141, 4800.0, (9, 0)),
    Card("H100 NVL", 835.0, 94, 3900.0, (9, 0)),
    Card("H100 PCIe", 756.0, 80, 2039.0, (9, 0)),
    Card("H100", 989.0, 80, 3350.0, (9, 0), published=258_700.0),  # uncompiled, PyTorch 2.2
    Card("MI300X", 1307.4, 192, 5300.0, (9, 4)),  # as PyTorch reports gfx942
    Card("A100", 312.0, 40, 1555.0, (8, 0)),
    Card("A100 80GB", 312.0, 80, 2039.0, (8, 0)),
    Card("A30", 165.0, 24, 933.0, (8, 0)),
    Card("A10", 125.0, 24, 600.0, (8, 6)),
    Card("A10G", 70.0, 24, 600.0, (8, 6)),
    Card("L40S", 362.0, 48, 864.0, (8, 9)),
    Card("L4", 121.0, 24, 300.0, (8, 9)),
    Card("T4", 65.0, 16, 320.0, (7, 5)),
    Card("V100", 125.0, 16, 900.0, (7, 0)),
    Card("V100 32GB", 125.0, 32, 900.0, (7, 0)),
    Card("RTX PRO 6000", 503.8, 96, 1792.0, (12, 0)),
    Card("RTX 5090", 209.5, 32, 1792.0, (12, 0)),
    Card("RTX 5080", 112.6, 16, 960.0, (12, 0)),
    Card("RTX 5070 Ti", 87.9, 16, 896.0, (12, 0)),
    Card("RTX 5070", 61.7, 12, 672.0, (12, 0)),
    Card("RTX 4090", 165.2, 24, 1008.0, (8, 9)),
    Card("RTX 4080 SUPER", 104.4, 16, 736.3, (8, 9)),
    Card("RTX 4080", 97.5, 16, 716.8, (8, 9)),
    Card("RTX 4070 Ti SUPER", 88.2, 16, 672.3, (8, 9)),
    Card("RTX 4070 Ti", 80.2, 12, 504.2, (8, 9)),
    Card("RTX 4070 SUPER", 71.0, 12, 504.2, (8, 9)),
    Card("RTX 4070", 58.3, 12, 504.2, (8, 9)),
    Card("RTX 4060 Ti", 44.1, 8, 288.0, (8, 9)),
    Card("RTX 4060 Ti 16GB", 44.1, 16, 288.0, (8, 9)),
    Card("RTX 4060", 30.2, 8, 272.0, (8, 9)),
    Card("RTX 3090 Ti", 80.0, 24, 1008.0, (8, 6)),
    Card("RTX 3090", 71.0, 24, 936.0, (8, 6)),
    Card("RTX 3080 Ti", 68.2, 12, 912.0, (8, 6)),
    Card("RTX 3080", 59.5, 10, 760.0, (8, 6)),
    Card("RTX 3070 Ti", 43.5, 8, 608.0, (8, 6)),
    Card("RTX 3070", 40.6, 8, 448.0, (8, 6)),
    Card("RTX 3060 Ti", 32.4, 8, 448.0, (8, 6)),
    Card("RTX 3060", 25.5, 12, 360.0, (8, 6)),
    Card("RTX A6000", 154.8, 48, 768.0, (8, 6), published=103_200.0),  # compiled, PyTorch 2.0
    Card("RTX A4000", 88.45, 16, 448.0, (8, 6)),
    Card("RTX 2080 Ti", 53.8, 11, 616.0, (7, 5)),
    Card("TITAN RTX", 130.5, 24, 672.0, (7, 5)),
)
_SLOWER = {"laptop", "q", "server", "d", "mig"}
"""Words that mark a slower card of the same name: laptops, Max-Q, the RTX 4090 D, parts of one."""


def known_card(name: str) -> Card | None:
    """The card with the most words, all of which occur in a device's name; None if there is none.

    Their order does not matter: an A100 with 80 GB calls itself ``NVIDIA A100-SXM4-80GB``.
    """
    words = _words(name)
    known = [card for card in CARDS if _words(card.name) <= words and not words & _SLOWER]
    return max(known, key=lambda card: len(_words(card.name)), default=None)


def _words(name: str) -> set[str]:
    """Words of a name, in lower case; ``80 GB`` is one of them."""
    return set(re.findall(r"\w+", re.sub(r"(\d) ?gb?\b", r"\1gb", name.lower())))


def card_called(name: str) -> Card:
    """The card that a user's name for it means, however it is spaced: ``4090``, ``rtx4090``.

    Raises:
        InputError: it means no card, or more than one.
    """
    short = _squeezed(name)
    for card in CARDS:
        called = _squeezed(card.name)
        if short and {short, f"{short}gb"} & {called, called.removeprefix("rtx")}:
            return card
    known = known_card(name)
    if known is not None and _sizes(name) - _sizes(known.name) <= {str(known.gibibytes)}:
        return known
    meant = [card.name for card in CARDS if short and short in _squeezed(card.name)]
    if len(meant) > 1:
        raise InputError(f"--device {name}: name one of {', '.join(meant)}")
    names = [card.name for card in CARDS]
    # A name that is part of just one other is not taken for it: an L40 is no L40S.
    hint = f"did you mean {meant[0]}? " if meant else did_you_mean(short, names)
    raise InputError(
        f"--device {name}: no card of this name is known; {hint}name one of {', '.join(names)}"
    )


def _sizes(name: str) -> set[str]:
    """The numbers in a name that may be its memory, such as 80 in ``A100 80 GB``, ``A100-80``."""
    return set(re.findall(r"\b(\d+)(?:gb)?\b", " ".join(_words(name))))


def _squeezed(name: str) -> str:
    """A name in lower case, without its maker, brand and everything between words."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    makers = ("nvidia", "geforce", "tesla", "amd", "instinct")
    return "".join(word for word in words if word not in makers)
