"""Reads the text of web pages in HTML."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.formats import lines
from crammed.formats.lines import File, open_bytes

DEEPEST = 500
"""Elements in one another; browsers show about as many. Finding the main content takes time in
proportion to this depth, so that nobody would see the end of a page made to do harm."""
_FEW = 2_000
"""Elements that may lie in one another in any way, since that takes a tenth of a second."""


def require_web() -> None:
    """Check that web pages can be read.

    Raises:
        InputError: the library is missing; names the extra that installs it.
    """
    import_extra(
        "resiliparse.extract.html2text",
        "web",
        "reading web pages",
        ", or name the other files by their suffix, as in FOLDER/**/*.txt",
    )


def text_of_page(page: bytes, shown: str, charset: str | None = None) -> str:
    """The main content of an HTML page, without menus and the like.

    Args:
        shown: what messages call it.
        charset: its encoding if it was sent along; otherwise the page is looked at.

    Raises:
        InputError: elements lie more than `DEEPEST` deep in it, or the library is missing; names
            the extra that installs it.
    """
    require_web()
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse_from_bytes(page, encoding_of(page, charset))
    if _many_blocks(page) and _depth(tree) > DEEPEST:
        raise InputError(f"{shown}: a page whose elements are nested more than {DEEPEST} deep")
    text: str = extract_plain_text(tree, main_content=True, list_bullets=False, alt_texts=False)
    return text


def _many_blocks(page: bytes) -> bool:
    """Whether the page has many of the elements whose depth takes time."""
    lower = page.replace(b"\0", b"").lower()  # without those of UTF-16
    return lower.count(b"<div") + lower.count(b"<article") > _FEW


def _depth(tree: Any) -> int:
    from resiliparse.parse.html import traverse_dom

    deepest = 0

    def visit(context: Any) -> None:
        nonlocal deepest
        deepest = max(deepest, context.depth)

    traverse_dom(tree.document, visit)
    return deepest


def encoding_of(page: bytes, charset: str | None = None) -> str:
    """The encoding of a page or of text from the web."""
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    if charset and (name := map_encoding_to_html5(charset, fallback_utf8=False)):
        return str(name)
    if b"\x1b" not in page:  # the escapes of ISO-2022 are ASCII
        with suppress(UnicodeDecodeError):
            page.decode()
            return "utf-8"
    return detect_encoding(page, from_html_meta=True) or "utf-8"


def read_whole(file: File) -> bytes:
    """The content of a file that is one document.

    Raises:
        InputError: the file is too long, or damaged.
    """
    with open_bytes(file) as stream:
        data = stream.read(lines.LARGEST + 1)
    if len(data) > lines.LARGEST:
        raise InputError(f"{file.shown} has more than {lines.LARGEST:,} bytes: is it one document?")
    return data
