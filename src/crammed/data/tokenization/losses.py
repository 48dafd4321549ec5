"""What a tokenizer does to a text that the user should know: lost letters, words without spaces."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from crammed.config import TokenizerConfig
from crammed.sentences import is_unspaced

WORTH_KNOWING = 0.001
"""Share of a text's characters whose loss the user is told of."""
_LONG_WORD, _MANY_LETTERS = 20, 0.2
"""Text with more than this share of its letters in words longer than this puts no spaces between
words: of Thai letters, half are; of German or Finnish ones, one in a hundred."""
_LOOKED_AT = 200_000
"""Characters that decide whether words are apart."""
_EXAMPLES = 8
_SAMPLED, _PASSAGE = 200_000, 200  # characters
_JOINERS = "\u200c\u200d"
"""Zero-width characters that change how words of Persian or Malayalam, for instance, are read."""


def sample_of(texts: Iterable[str], characters: int) -> str:
    """About 200,000 characters in short passages from anywhere in the texts, or else all of them.

    Args:
        characters: how many the texts have, about.
    """
    passages = (text[at : at + _PASSAGE] for text in texts for at in range(0, len(text), _PASSAGE))
    share = _SAMPLED / max(1, characters)
    draw = random.Random(0)
    return " ".join(passage for passage in passages if draw.random() < share)


def remarks(tokenizer: Tokenizer, text: str, config: TokenizerConfig) -> Iterator[str]:
    """What the user should know about a tokenizer and a text, one line each."""
    if (lost := describe_losses(tokenizer, text, config)) is not None:
        yield lost
    if config.file is None and config.by_chunk and has_no_spaces(text):
        yield (
            "text without spaces between its words: tokenizer.kind=unigram suits it better "
            "(docs/languages.md)"
        )


def has_no_spaces(text: str) -> bool:
    """Whether a text puts no spaces between words; Chinese characters count as words."""
    apart = normalizers.BertNormalizer(lowercase=False, strip_accents=False).normalize_str(text)
    words = [
        len(word)
        for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(apart)
        if all(unicodedata.category(each)[0] in "LM" for each in word)
    ]
    long = sum(length for length in words if length > _LONG_WORD)
    return long > _MANY_LETTERS * sum(words)


def words_are_apart(text: str) -> bool:
    """Whether a text has spaces between words: not in Chinese, Thai or DNA, for instance."""
    text = text[:_LOOKED_AT]
    unspaced = [is_unspaced(character) for character in text if character.isalpha()]
    return sum(unspaced) <= len(unspaced) / 2 and not has_no_spaces(text)


def lost_characters(tokenizer: Tokenizer, text: str) -> tuple[Counter[str], int]:
    """The characters of a text that normalising drops or replaces, and how many it has in all.

    White space and invisible characters do not count, nor does what case and Unicode's
    compatibility forms change, such as full-width letters.
    """
    lost, characters = Counter[str](), 0
    for character, count in Counter(unicodedata.normalize("NFC", text)).items():
        if not (expected := _folded(character)):
            continue
        characters += count
        if tokenizer.normalizer is not None:
            left = tokenizer.normalizer.normalize_str(character)
            if expected - _folded(unicodedata.normalize("NFC", left)):
                lost[character.lower()] += count
    return lost, characters


def _folded(text: str) -> Counter[str]:
    """The characters that count, without the differences that do not."""
    return Counter(
        each
        for each in unicodedata.normalize("NFKC", text).lower()
        if each in _JOINERS or not (each.isspace() or unicodedata.category(each)[0] == "C")
    )


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
