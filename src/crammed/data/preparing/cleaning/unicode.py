"""Step ``unicode``: one spelling of the same text, without characters that cannot be seen."""

from __future__ import annotations

import re
from functools import cache
from unicodedata import combining, normalize

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # category Cc except tab and newline
_BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85"  # those that `str.splitlines` takes for the end of a line
_INVISIBLE = "\u200b\u2060\ufeff"  # not the joiners and marks of direction that scripts need
_DAMAGED = "\ufffd\ud800-\udfff"  # undecodable bytes, lone surrogates
_REMOVED = re.compile(f"[{_CONTROLS}{_INVISIBLE}{_DAMAGED}]")  # some for a line break
_REMOVED_ASCII = {
    n: "\n" if chr(n) in _BREAKS else None for n in (*range(0x09), *range(0x0B, 0x20), 0x7F)
}
_REMOVED_BYTES = bytes(_REMOVED_ASCII)
_REMOVED_LATIN = re.compile(rb"\xc2[\x80-\x9f]")


def normalise(text: str) -> str:
    r"""The text in normal form C, with \n for line breaks and without invisible characters.

    Control characters that end lines, such as form feeds, become line breaks. Other ones than tab
    and newline are removed, as are zero-width spaces, word joiners, byte order marks, U+FFFD, lone
    surrogates, and spaces at the end of lines. Applying it again changes nothing.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        text = text.translate(_REMOVED_ASCII)
    else:
        if not _looks_plain(text):
            text = _marks_in_order(_REMOVED.sub(_instead, text))
        text = normalize("NFC", text)
    if " \n" in text or ("\t" in text and "\t\n" in text):  # the latter takes much longer
        text = "\n".join([line.rstrip(" \t") for line in text.split("\n")])
    return text.rstrip(" \t")


def _instead(removed: re.Match[str]) -> str:
    return "\n" if removed[0] in _BREAKS else ""


def _looks_plain(text: str) -> bool:
    """Whether a quick look at the bytes rules out all that is removed, and long runs of marks."""
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return not (
        _FAR_FROM_ASCII.search(data[::_BYTE_STRIDE])
        or len(data.translate(None, _REMOVED_BYTES)) < len(data)
        or _REMOVED_LATIN.search(data)
        or any(each in text for each in f"{_INVISIBLE}\ufffd")
    )


_MANY_MARKS, _STRIDE = 32, 8
_BYTE_STRIDE = 16
_FAR_FROM_ASCII = re.compile(rb"[\x80-\xff]{%d}" % (2 * _MANY_MARKS // _BYTE_STRIDE))
"""Found in the bytes of every long run of marks, each of which has two or more."""
_LAST_MARK = 0x1FFFF
"""No combining mark has a larger number."""
_BEYOND = f"\U00010000-{chr(_LAST_MARK)}"


@cache
def _runs_of_marks(shortest: int, beyond: str = "") -> re.Pattern[str]:
    """Finds this many or more combining marks, or what decomposes into some, in a row.

    Args:
        beyond: what to take for marks beyond U+FFFF instead; `re` is quick with few ranges there.
    """
    every = map(chr, range(0x300, 0x10000 if beyond else _LAST_MARK + 1))
    marks = re.escape("".join(each for each in every if combining(normalize("NFD", each)[0])))
    return re.compile(f"[{marks}{beyond}]{{{shortest},}}")


def _marks_in_order(text: str) -> str:
    """The same text for `normalize`, whose time grows with the square of a run of marks.

    It takes no longer for marks that are sorted by their classes, as normal forms have them.
    """
    if not _runs_of_marks(_MANY_MARKS // _STRIDE, _BEYOND).search(text[::_STRIDE]):
        return text  # which every long run would leave there
    return _runs_of_marks(_MANY_MARKS).sub(_in_order, text)


def _in_order(run: re.Match[str]) -> str:
    parts = "".join([normalize("NFD", each) for each in run[0]])
    return "".join(sorted(parts, key=combining))
