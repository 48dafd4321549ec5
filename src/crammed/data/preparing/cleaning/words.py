"""The words of a text as a tokenizer's normaliser sees them, for comparing texts.

Words end at white space of any kind, such as U+00A0, and at punctuation. Case, accents, the width
of letters and what has no width do not count. An ideograph is a word. Where no spaces are written,
as in Thai or between kana, a stretch of more than `LONGEST` letters is cut after letters that a
hash picks, every fourth on average, so a passage is cut alike wherever it stands. Words of ASCII
letters, into which accented ones turn, stay whole unless they are to be cut, too.
"""

from __future__ import annotations

from unicodedata import category, name, normalize
from zlib import crc32

from crammed.data.tokenization.chunks import WHITE_SPACE

LONGEST = 16
"""Letters that are one word in any script."""

_PICKED = 4
"""One letter in so many ends a word where words are not told apart."""


class _Letters(dict[int, str]):
    """What stands for a character, by its number."""

    def __missing__(self, number: int) -> str:
        decomposed = normalize("NFKD", chr(number).casefold())
        value = self[number] = "".join(map(_letter, decomposed))
        return value


def _letter(character: str) -> str:
    kind = category(character)[0]
    if kind in "MC":  # marks, and what has no width; white space among the controls
        return " " if character.isspace() else ""
    if kind not in "LN":
        return " "
    return f" {character} " if name(character, "").startswith("CJK UNIFIED") else character


class _Cuts(dict[int, str]):
    """A letter by its number, with a space after it if a word ends there."""

    def __missing__(self, number: int) -> str:
        letter = chr(number)
        picked = crc32(letter.encode()) % _PICKED == 0
        value = self[number] = f"{letter} " if picked else letter
        return value


_LETTERS, _CUTS = _Letters(), _Cuts()


def words_of(text: str, *, cut_ascii: bool = False) -> list[str]:
    """The words of a text, in lower case; takes time in proportion to its length.

    Args:
        cut_ascii: also cut long stretches of ASCII letters, such as sequences of amino acids.
    """
    word = text.strip(WHITE_SPACE)
    if len(word) <= LONGEST and word.isascii() and word.isalnum():  # as almost every chunk
        return [word.lower()]
    words = text.translate(_LETTERS).split()
    if not cut_ascii and text.isascii():
        return words
    if max(map(len, words), default=0) <= LONGEST:
        return words
    return [piece for word in words for piece in _pieces(word, cut_ascii)]


def _pieces(word: str, cut_ascii: bool) -> list[str]:
    long = len(word) > LONGEST and (cut_ascii or not word.isascii())
    return word.translate(_CUTS).split() if long else [word]
