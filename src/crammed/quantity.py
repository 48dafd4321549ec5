"""Numbers formatted for people."""

from __future__ import annotations


def quantity(value: float | None, unit: str = "") -> str:
    """Three significant digits and an SI prefix: ``1234567`` gives ``1.23 M``."""
    if value is None:
        return "unknown"
    value = float(f"{value:.3g}")  # before the prefix is chosen, so that 999,999 is 1 M
    steps = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    for factor, letter in steps:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def flops_text(value: float) -> str:
    """A number of FLOPs with a unit that keeps it short: ``12.3 TFLOP``, ``1.5 exaFLOP``."""
    return quantity(value, "FLOP").replace("EFLOP", "exaFLOP")


def counted(count: int, noun: str) -> str:
    """A count and its noun, in the plural unless it is 1: ``1 task``, ``1,234 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def times(count: float) -> str:
    """How often, in words: ``once``, ``2.50 times``."""
    return "once" if count == 1.0 else f"{count:.2f} times"


def progress_rate(done: int, unit: str, seconds: float) -> str:
    """Progress so far and its speed: ``1,234,567 characters, 2.34 M per second``."""
    return f"{done:,} {unit}, {quantity(done / max(1e-9, seconds))} per second"


def logits_text(difference: float | None, library: str = "transformers") -> str:
    """How an export's logits in a library compare with ours, given the largest difference."""
    if difference is None:
        return f"not checked, because {library} is not installed"
    apart = f" to within {difference:.1e}" if difference else ""
    return f"{library} computes the same logits{apart}"


def beside_unigram(loss: float, unigram: float) -> str:
    """A loss compared with the unigram model's: ``0.42 nats below the unigram model``."""
    difference = f"{abs(loss - unigram):.2f}"
    if float(difference) == 0.0:
        return "level with the unigram model"
    return f"{difference} nats {'below' if loss < unigram else 'above'} the unigram model"


def truncated(count: int, length: int) -> str:
    """How many texts were too long: ``2 texts longer than 128 tokens were truncated``."""
    was = "was" if count == 1 else "were"
    return f"{counted(count, 'text')} longer than {length:,} tokens {was} truncated"
