"""Finds the format of a file by its first bytes, where its name does not say it."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re

from crammed.formats.lines import File, open_bytes, open_lines
from crammed.formats.streams import BUFFER
from crammed.formats.tables import delimiter_of

_BINARY = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"\xff\xff\xff\xff": ".arrow",
    b"PK\x03\x04": ".zip",
}
_TAR_AT, _TAR = 257, b"ustar"
_CUT_LINE = 4_000
"""Characters from which a first line may be longer than what is looked at."""
_CONTROLS = re.compile(rb"[\0-\x06\x0e-\x19\x1c-\x1f]")
"""Bytes that text does not hold, in whatever encoding; DOS ends text with ``\\x1a``."""
_PAGE = re.compile(r"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)


def format_by_content(file: File, text_field: str) -> str | None:
    """The key of the format that a file seems to have; None if it is binary and of no known one.

    Args:
        text_field: the column that makes a table of text.

    Raises:
        InputError: the file cannot be read.
    """
    with open_bytes(file) as stream:
        begin = stream.peek(BUFFER)
    for magic, format in _BINARY.items():
        if begin.startswith(magic):
            return format
    if begin[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        return ".tar"
    with open_lines(file, plain=True) as lines:
        return format_of_text(lines.peek(BUFFER), text_field)


def format_of_text(begin: bytes, text_field: str) -> str | None:
    """The key of the format of text that begins so; None if it is not text.

    Text may be in another encoding than UTF-8: reading it says how to convert it.
    """
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)  # which may end within a character
    except UnicodeDecodeError:
        if _CONTROLS.search(begin):
            return None
    text = begin.decode(errors="replace").removeprefix("\ufeff")
    if "\0" in text:
        return None
    if text.startswith("WARC/"):
        return ".warc"
    if _PAGE.match(text):
        return ".html"
    if is_json_text(text):
        return ".jsonl"
    return _table(text, text_field) or ".txt"


def is_json(file: File) -> bool:
    """Whether a file seems to hold a JSON object on each line, or an array of objects.

    Raises:
        InputError: the file cannot be read.
    """
    with open_lines(file) as stream:
        return is_json_text(stream.peek(BUFFER).decode(errors="replace").removeprefix("\ufeff"))


def is_json_text(text: str) -> bool:
    """Whether text that begins so is a JSON object on a line, or an array of objects."""
    text = text.lstrip()
    if text.startswith("["):
        return text[1:].lstrip()[:1] == "{"
    line, end, _ = text.partition("\n")
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return not end and len(text) > _CUT_LINE and re.match(r'\{\s*"', text) is not None


def _table(text: str, text_field: str) -> str | None:
    """The format of a table: the first line has the column, and the next has as many cells.

    The number of a column is enough if there are several.
    """
    lines = text.splitlines(keepends=True)
    delimiter = delimiter_of(lines)
    rows = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=delimiter)
    try:
        header = next(rows, [])
        first = next(rows, [])
    except csv.Error:
        return None
    by_place = text_field.isdecimal() and 0 < int(text_field) <= len(header) > 1
    named = text_field != "" and text_field in header
    if not (named or by_place) or len(first) != len(header):
        return None
    return ".tsv" if delimiter == "\t" else ".csv"
