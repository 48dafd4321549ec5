"""What a tokenizer's normaliser takes from a text: letters without their accents, lost quotes."""

from __future__ import annotations

import unicodedata
from collections import Counter

from tokenizers import Tokenizer

from crammed.config import TokenizerConfig

WORTH_KNOWING = 0.001
"""Share of a text's characters whose loss the user is told of."""
_EXAMPLES = 8
_JOINERS = "\u200c\u200d"
"""Zero-width characters that change how words of Persian or Malayalam, for instance, are read."""


def lost_characters(tokenizer: Tokenizer, text: str) -> tuple[Counter[str], int]:
    """The characters of a text that normalising drops or replaces, and how many it has in all.

    White space and invisible characters do not count, nor does what case and Unicode's
    compatibility forms change, such as full-width letters.
    """
    before = _characters(text)
    if tokenizer.normalizer is None:
        return Counter(), before.total()
    return before - _characters(tokenizer.normalizer.normalize_str(text)), before.total()


def _characters(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for character, count in Counter(unicodedata.normalize("NFC", text)).items():
        for each in unicodedata.normalize("NFKC", character).lower():
            if each in _JOINERS or not (each.isspace() or unicodedata.category(each)[0] == "C"):
                counts[each] += count
    return counts


def describe_losses(tokenizer: Tokenizer, text: str, config: TokenizerConfig) -> str | None:
    """One line about what normalising loses of a text, and how to keep it; None if it is little."""
    lost, characters = lost_characters(tokenizer, text)
    if lost.total() < WORTH_KNOWING * max(1, characters):
        return None
    dropped, replaced = [], []
    for character, _ in lost.most_common(_EXAMPLES):
        left = tokenizer.normalizer.normalize_str(character).strip()
        shown = _visible(character)
        if left and left != character:
            replaced.append(f"{shown} becomes {left}")
        else:
            dropped.append(shown)
    if dropped:
        replaced.append(f"{' '.join(dropped)} vanish" + "es" * (len(dropped) == 1))
    return (
        f"changes or drops {100 * lost.total() / characters:.1f} % of the characters of this text "
        f"({', '.join(replaced)}{', ...' if len(lost) > _EXAMPLES else ''}); {_remedy(config)}"
    )


def _visible(character: str) -> str:
    """The character: marks on a dotted circle, and code points of what cannot be seen."""
    if character in _JOINERS:
        return f"U+{ord(character):04X}"
    return f"\u25cc{character}" if unicodedata.category(character).startswith("M") else character


def _remedy(config: TokenizerConfig) -> str:
    if config.file is not None:
        return "that is how the tokenizer in tokenizer.file is made"
    keys = [key for key in ("strip_accents", "ascii_only") if getattr(config, key)]
    if keys:
        verb = "keeps" if len(keys) == 1 else "keep"
        return f"{' '.join(f'tokenizer.{key}=false' for key in keys)} {verb} them"
    return "tokenizer.kind=bpe keeps them"
