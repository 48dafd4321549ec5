"""reStructuredText as plain text: what a reader sees, without the marks.

`docutils` would need to know every directive and role of the tool that a text was written for, of
which Sphinx alone has hundreds. Here all that is not known to be layout is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

_LAYOUT = frozenset(
    [
        *("class", "contents", "date", "default-domain", "default-role", "footer", "header"),
        *("highlight", "highlightlang", "image", "include", "index", "literalinclude", "meta"),
        *("module", "currentmodule", "py:module", "py:currentmodule", "only", "plot", "raw"),
        *("replace", "role", "sectnum", "sectionauthor", "tabularcolumns", "target-notes"),
        *("title", "toctree", "unicode", "autosummary", "automodule", "autoclass", "autodata"),
        *("autofunction", "autoattribute", "autoexception", "automethod"),
    ]
)
"""Directives that are left out with all that belongs to them."""
_CODE = frozenset(["code", "code-block", "sourcecode", "doctest", "testcode", "parsed-literal"])
"""Directives whose content is code, and what follows the name its language."""

_EXPLICIT = re.compile(r"\.\.(?:\s+(.*))?\Z")
_DIRECTIVE = re.compile(r"(?:\|[^|]+\|\s+)?([\w:.+-]*\w)\s?::(?:\s+(.*))?\Z")
_FOOTNOTE = re.compile(r"\[(?:#?[\w.-]*|\*)\]\s+(.*)")
_OPTION = re.compile(r":[\w -]+:(?:\s|\Z)")
_ADORNMENT = re.compile(
    r"""([!-/:-@[-`{-~])\1{3,}\Z|[=~^"#*+-]{3}\Z|={2,}(?:\s+={2,})+\Z|\+[-=+]+\+\Z"""
)
_BULLET = re.compile(r"\A(?:[-*+•]|#\.)\s+(?=\S)")

# Their lengths are bounded, or else long text without any end of a mark would take forever.
_LITERAL = re.compile(r"``(.{1,1000}?)``(?!\w)", re.DOTALL)
_QUOTED = re.compile(
    r"(?::[\w.:+-]{1,100}:)?`((?:[^`\\]|\\.)+)`(?:__?(?!\w)|:[\w.:+-]{1,100}:)?", re.DOTALL
)
_TARGET = re.compile(r"(?<!\s)\s*<[^<>]*>\Z")
_NOTE = re.compile(r"(?<!\s)\s*\[(?:#?[\w.-]*|\*)\]_(?!\w)")
_SUBSTITUTION = re.compile(r"(?<!\w)\|(?=\S)([^|\n]*\S)\|_{0,2}(?!\w)")
_STRONG = re.compile(r"(?<![\w*\\])(\*\*?)(?=[^\s*])(.{0,1000}?[^\s*\\])\1(?![\w*])", re.DOTALL)
_REFERENCE = re.compile(r"(?<![\w.])([A-Za-z][A-Za-z0-9]*)__?(?!\w)")
_ESCAPE = re.compile(r"\\(?:\s|(\S))")
_NOWHERE = 1 << 30  # more than any indentation


def text_of_restructured(text: str) -> str:
    """The text of reStructuredText: no adornments, comments, targets, options and marks.

    Code and what stands between double backquotes stays as it is.
    """
    parts = []
    for literal, group in groupby(_lines(text.expandtabs(8).split("\n")), lambda each: each[0]):
        part = "\n".join(line for _, line in group)
        parts.append(part if literal else _inline(part))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip("\n")


def _lines(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """The lines that are text or code, each with whether it is code."""
    left_out = literal = options = _NOWHERE
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text:
            options = _NOWHERE
            yield literal < _NOWHERE, ""
            continue
        if indent > left_out or (indent > options and _OPTION.match(text)):
            continue
        left_out = options = _NOWHERE
        if indent > literal:
            yield True, line.rstrip()
            continue
        literal = _NOWHERE
        if explicit := _EXPLICIT.match(text):
            kept, kind = _explicit(explicit[1] or "")
            if kind == "left out":
                left_out = indent
            else:
                options = indent
            if kind == "code":
                literal = indent
            text = kept
        elif text.endswith("::"):
            text, literal = text[:-2].rstrip() and text[:-1].rstrip(" :") + ":", indent
        if text and (cleaned := _line(text)):
            yield False, cleaned


def _explicit(markup: str) -> tuple[str, str]:
    """What is kept of the first line of explicit markup, and what its block is."""
    if footnote := _FOOTNOTE.match(markup):
        return footnote[1], "text"
    directive = _DIRECTIVE.match(markup)
    if directive is None or directive[1] in _LAYOUT:
        return "", "left out"  # or a comment, or a target
    if directive[1] in _CODE:
        return "", "code"
    return directive[2] or "", "text"


def _line(text: str) -> str:
    """A line without what makes it a title, an item of a list, or a row of a table."""
    if _ADORNMENT.match(text) or re.fullmatch(r":[\w -]+:", text):
        return ""
    if text.startswith("| ") or text == "|":  # a row of a table, or verse
        cells = [cell.strip() for cell in text.strip("|").split(" | ")]
        return "\t".join(cells).strip()
    return _BULLET.sub("", text)


def _inline(text: str) -> str:
    pieces = _LITERAL.split(text)
    pieces[::2] = [_unmarked(piece) for piece in pieces[::2]]
    return "".join(pieces)


def _unmarked(text: str) -> str:
    text = _NOTE.sub("", text)
    text = _QUOTED.sub(lambda found: _shown(found[1]), text)
    text = _SUBSTITUTION.sub(r"\1", text)
    text = _STRONG.sub(r"\2", text)
    text = _REFERENCE.sub(r"\1", text)
    return _ESCAPE.sub(lambda found: found[1] or "", text)


def _shown(target: str) -> str:
    """What is shown of the text of a role or a link."""
    shown = _TARGET.sub("", target) or target.strip("<>")
    return shown.rpartition(".")[2] if shown.startswith("~") else shown.removeprefix("!")
