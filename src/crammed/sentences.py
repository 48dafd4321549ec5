"""Sentences of text in any language, and where its words begin and end.

The rules are those of Unicode's annex 29, in short: a sentence ends after a mark such as ``.``,
``。`` or ``।``, or with its paragraph; words end where letters do, and anywhere in scripts that put
no spaces between words. Abbreviations are told by the lower-case letter that follows them.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

ENDS = (
    "\u203c\u203d\u2047\u2048\u2049\u3002\ua4ff\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
    "\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0964\u0965\u104a\u104b\u1362"
    "\u1367\u1368\u166e\u17d4\u17d5\u1803\u1809\u1944\u1945\u1b5a\u1b5b\u1b5e\u1b5f\u1c3b\u1c3c"
    "\u1c7e\u1c7f\u2e2e\ua60e\ua60f\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uabeb"
)
"""Marks that end a sentence whatever follows (Sentence_Terminal, without ``.``, ``!``, ``?``)."""
CLOSING = "\"'\u2019\u201d\u00bb\u203a\u201c\u2018)\\]}\u300d\u300f\u3011\uff09"
"""What may follow such a mark: quotation marks and brackets, for a class of a pattern."""
_END = re.compile(rf"[{ENDS}]+[{CLOSING}]*\s*|[.!?\u2026]+[{CLOSING}]*(?:\s+|$)")
_WRAPPED = (50, 100)
"""Columns of a line that may have been broken only because it was full."""
_TOGETHER = re.compile(
    "[\u3000-\u312f\u3190-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff]{2}"
)
"""Two ideographs, kana or their punctuation: no space separates these, as it does Hangul."""
_UNSPACED = {"CJK", "HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "TAI"}
"""Scripts without spaces between words, by the first word of their characters' names."""


def sentences(text: str) -> Iterator[tuple[str, bool]]:
    """The sentences of a text, and whether each ends with a mark rather than a paragraph."""
    for paragraph in _paragraphs(text):
        start = 0
        for found in _END.finditer(paragraph):
            if _ends(paragraph, start, found):
                yield paragraph[start : found.end()].strip(), True
                start = found.end()
        if rest := paragraph[start:].strip():
            yield rest, False


def _ends(paragraph: str, start: int, found: re.Match[str]) -> bool:
    """Whether a sentence ends at a mark: not after ``z. B.``, ``3.`` or before a small letter."""
    if found[0][0] in ENDS:
        return True
    following = paragraph[found.end() : found.end() + 1]
    if following.islower():
        return False
    words = paragraph[start : found.start()].split()
    return not words or found[0][0] != "." or not (len(words[-1]) == 1 or words[-1].isdigit())


def _paragraphs(text: str) -> Iterator[str]:
    """Lines, joined where a line was broken only because it was full."""
    paragraph = ""
    full = False
    for line in [*(" ".join(each.split()) for each in text.splitlines()), ""]:
        if paragraph and not (full and line):
            yield paragraph
            paragraph = ""
        paragraph = joined(paragraph, line)
        least, most = _WRAPPED
        full = least <= columns(line) <= most and not _END.search(line[-2:])
        full = full and not _may_end_anywhere(line)


def _may_end_anywhere(line: str) -> bool:
    """Whether a line ends in Thai or Lao, which have no marks at the ends of sentences."""
    last = next(filter(str.isalpha, reversed(line)), "")
    return "\u0e00" <= last <= "\u0eff"


def joined(text: str, more: str) -> str:
    """Two pieces of a text, with a space between them unless ideographs or kana meet there."""
    apart = text and more and not _TOGETHER.match(text[-1] + more[0])
    return f"{text} {more}" if apart else text + more


def columns(text: str) -> int:
    """Width of a text in columns of a terminal: ideographs, kana and Hangul take two each."""
    return sum(
        0 if is_mark(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text
    )


def is_mark(character: str) -> bool:
    """Whether a character is a mark on the one before it, such as a vowel sign."""
    return unicodedata.category(character).startswith("M")


@cache
def marks() -> str:
    """All marks on letters, which ``\\w`` does not match, for a class of a pattern."""
    return "".join(filter(is_mark, map(chr, range(sys.maxunicode + 1))))


def word_pattern() -> str:
    """A pattern of words with the marks on their letters."""
    return rf"\w[\w{marks()}]*"


def is_word(text: str) -> bool:
    """Whether a text consists of letters and their marks."""
    return bool(text) and text[0].isalpha() and all(c.isalpha() or is_mark(c) for c in text)


@lru_cache(maxsize=10_000)
def is_unspaced(character: str) -> bool:
    """Whether a letter is of a script that puts no spaces between words."""
    return re.split("[ -]", unicodedata.name(character, ""))[0] in _UNSPACED


def at_border(text: str, at: int) -> bool:
    """Whether a word may begin or end before the character at this place."""
    if not 0 < at < len(text):
        return True
    left, right = text[at - 1], text[at]
    if is_mark(right):
        return False
    joined = (left.isalnum() or is_mark(left)) and right.isalnum()
    return not joined or is_unspaced(right) or is_unspaced(left)
