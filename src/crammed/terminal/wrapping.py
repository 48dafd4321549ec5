"""Lines that end where a terminal does, between words; a file gets them as they are."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

WIDEST = 120
"""Running text is no wider than this, however wide a terminal is."""


def width_of(stream: TextIO) -> int | None:
    """Columns for running text on a terminal; None if the stream is not one."""
    return min(WIDEST, shutil.get_terminal_size().columns) if stream.isatty() else None


def hanging(label: str, text: str, width: int | None) -> str:
    """A label and a text, whose further lines begin below its first; no word is cut.

    Args:
        width: None does not wrap.
    """
    whole = label + text
    if width is None or len(whole) <= width:
        return whole
    return textwrap.fill(
        whole,
        width,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
