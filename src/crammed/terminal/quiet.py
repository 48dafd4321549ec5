"""Keeps library output, lost streams and control characters from disturbing the terminal."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TextIO

_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, changes of text direction, and surrogates, which cannot be encoded."""


_LOADING = RLock()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers, which must be installed.

    One thread at a time: warnings are of the process, and loading replaces functions of PyTorch.
    """
    from transformers.utils import logging

    with _LOADING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def silence(stream: TextIO) -> None:
    """Discard everything written to a stream, including what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def visible(text: str) -> str:
    """Make text from untrusted files safe to print.

    Characters that could control the terminal become visible symbols; tabs and line feeds stay.
    """
    return _ACTING.sub(lambda found: _picture(ord(found[0])), text)


def one_line(text: object) -> str:
    """As `visible`, for what is printed within a line, such as a path: line feeds are symbols."""
    return visible(str(text)).translate(_BREAKS)


_BREAKS = {ord("\n"): "\u240a", 0x2028: "\ufffd", 0x2029: "\ufffd"}


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
