"""Divides plain text into documents."""

from __future__ import annotations

import re
from collections.abc import Iterator

from crammed.config import TextDocuments
from crammed.errors import InputError
from crammed.formats import lines
from crammed.formats.lines import Faults, File, Numbered, open_lines
from crammed.sentences import CLOSING, ENDS

SMALL = 1 << 20
"""Bytes below which one of several text files is taken for one document."""
_LOOKED_AT = 1 << 18  # bytes
_FEW_LINES = 20
_LONGEST_WRAPPED = 120  # characters
_ENDS_SENTENCE = re.compile(rf"[.!?:;\u2026{ENDS}][{CLOSING}]*$")
"""Colons and semicolons count: a list has one item a line."""


def choose_documents(file: File) -> TextDocuments:
    """What one document of a text file is, by its first 262,144 bytes.

    Blank lines separate documents. A file without any is one document, unless most of its lines end
    as sentences do, or it is long and its lines are not cut to a common width.

    Raises:
        InputError: the file cannot be read.
    """
    with open_lines(file, plain=True) as stream:
        data = stream.read(_LOOKED_AT)
        whole = len(data) < _LOOKED_AT
    text = data.decode(errors="replace").removeprefix("\ufeff").strip()
    inked = [line.strip() for line in text.split("\n")]
    if "" in inked:
        return "blank-line"
    if not whole:
        del inked[-1:]  # which may be cut off
    if len(inked) < _FEW_LINES:
        return "file" if whole else "line"
    ends = sum(_ENDS_SENTENCE.search(line) is not None for line in inked)
    if ends > 0.75 * len(inked):
        return "line"
    return "file" if whole or _is_wrapped(inked) else "line"


def _is_wrapped(texts: list[str]) -> bool:
    """Whether most lines are nearly as long as the longest, which fits a page."""
    lengths = sorted(map(len, texts))
    longest = lengths[int(0.98 * len(lengths))]
    return longest <= _LONGEST_WRAPPED and lengths[len(lengths) // 3] > 0.75 * longest


def divide(
    numbered: Numbered, file: File, documents: TextDocuments, faults: Faults
) -> Iterator[str]:
    """Documents of plain text, without line breaks at their end.

    A line that cannot be read spoils the document that it is in.

    Args:
        documents: anything but auto.
    """
    gathered: list[str] = []
    size, spoiled = 0, False
    for number, line in numbered:
        if isinstance(line, str):
            size += len(line)
        if not spoiled and (fault := _fault(number, line, size, file)) is not None:
            faults.found(fault)
            spoiled = True
        elif isinstance(line, str) and not spoiled and (documents == "file" or line.strip()):
            gathered.append(line)
        if documents == "line" or (documents == "blank-line" and not str(line).strip()):
            if not spoiled and (gathered or documents == "line"):
                yield ("".join(gathered) or str(line)).rstrip("\r\n")
            gathered, size, spoiled = [], 0, False
    if gathered and not spoiled:
        yield "".join(gathered).rstrip("\r\n")


def _fault(number: int, line: str | InputError, size: int, file: File) -> InputError | None:
    """What makes a line unfit for the document that it is in.

    Args:
        size: characters of the document so far, including the line.
    """
    if isinstance(line, InputError):
        return line
    place = f"{file.shown}, line {number}"
    if "\0" in line:
        return InputError(f"{place}: a NUL character: is it a binary file?")
    if size > lines.LARGEST:
        return InputError(
            f"{place}: a document of more than {lines.LARGEST:,} characters; cut it with "
            "data.documents=line or blank-line"
        )
    return None
