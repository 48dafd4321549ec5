"""Markdown as plain text: what a reader sees, without the marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from crammed.extras import import_extra

_KEY = r"""["']?[\w.-]+["']?[ \t]*:\s"""
_FRONT_MATTER = re.compile(
    rf"\A---[ \t]*\r?\n(?:(?=(?:#.*\n)*{_KEY})(?:.*\n)*?)?(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)"
)
"""YAML, which begins with a key, after comments; before anything else, the first line is a rule."""
_TAG = re.compile(r"<!--.*?(?:-->|\Z)|</?[A-Za-z][^<>]*>", re.DOTALL)


def text_of_markdown(text: str) -> str:
    """The text of CommonMark with tables: blocks with a blank line between them.

    Front matter, HTML tags, addresses of links and the marks of emphasis, headings and lists are
    left out; code stays.
    """
    library = import_extra("markdown_it", "web", "reading .md")
    parser = library.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    blocks: list[tuple[str, bool]] = []  # and whether it is an item of a tight list, or a row
    cells: list[str] | None = None
    tight = False
    for token in parser.parse(_FRONT_MATTER.sub("", text, count=1)):
        if token.type == "paragraph_open":
            tight = token.hidden
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            blocks.append(("\t".join(cells or ()), True))
            cells = None
        elif token.type == "inline":
            inline = _inline(token.children or ())
            if cells is None:
                blocks.append((inline, tight))
            else:
                cells.append(" ".join(inline.split()))
        elif token.type in ("fence", "code_block"):
            blocks.append((token.content.rstrip("\n"), False))
        elif token.type == "html_block":
            blocks.append((_TAG.sub("", token.content).strip(), False))
        elif token.type.endswith("_close"):
            tight = False
    return _joined([block for block in blocks if block[0].strip()])


def _joined(blocks: Sequence[tuple[str, bool]]) -> str:
    """Blocks with a blank line before each, unless it and the one before are tight."""
    texts = []
    before = False
    for text, tight in blocks:
        texts.append(("\n" if tight and before else "\n\n") + text)
        before = tight
    return "".join(texts).strip("\n")


def _inline(tokens: Iterable[Any]) -> str:
    breaks = {"softbreak": "\n", "hardbreak": "\n", "html_inline": ""}
    return "".join(breaks.get(token.type, token.content) for token in tokens).strip()
