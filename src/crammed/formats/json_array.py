"""Splits a JSON array into its objects; the array need not fit in memory as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from crammed.formats import lines
from crammed.formats.lines import CutShort, File, chunks_of

_INK = re.compile(r"[^ \t\n\r]")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|\\?\Z)|[][{}]', re.DOTALL)
"""A bracket or a string; group 1 is unset if the text ends before the string does."""


def array_objects(stream: BinaryIO, file: File) -> Iterator[tuple[str, str]]:
    """The objects of an array, each as its place, for messages, and its text.

    Memory holds one object and at most as much again of what follows.

    Raises:
        CutShort: the file is damaged or not an array, or the array holds anything but objects.
    """
    text = _Text(chunks_of(stream, file))
    number, before = 0, "["
    while text.peek() == before:
        text.skip()
        if not number and text.peek() == "]":
            break
        number += 1
        place = f"{file.shown}, record {number}"
        if text.peek() != "{":
            raise CutShort(
                f"{place}: cut off, or not an object; an array may hold only objects with fields"
            )
        if (found := text.take_object()) is None:
            raise CutShort(f"{place}: cut off, or longer than {lines.LARGEST:,} characters")
        yield place, found
        before = ","
    if text.peek() != "]":
        raise CutShort(
            f"{file.shown}: the array is cut off or broken after record {number}; commas must "
            "separate its objects, and ] must end it"
        )
    text.skip()
    if text.peek():
        raise CutShort(f"{file.shown}: the file continues after the end of its array")


class _Text:
    """Text that is read piece by piece, with a position up to which it has been used."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Move to the next character that is not white space, and return it; empty at the end."""
        while (found := _INK.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._read_on():
                return ""
        self._at = found.start()
        return found[0]

    def skip(self) -> None:
        """Move on by one character."""
        self._at += 1

    def take_object(self) -> str | None:
        """The text from this bracket to the one that closes it; None if too long or cut off."""
        depth = end = 0
        while True:
            for token in _TOKEN.finditer(self._text, self._at + end):
                first = self._text[token.start()]
                if first == '"' and token[1] is None:
                    end = token.start() - self._at
                    break
                depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(first, 0)
                if not depth:
                    end = token.end() - self._at
                    found = self._text[self._at : self._at + end]
                    self._at += end
                    return found if end <= lines.LARGEST else None
            else:
                end = len(self._text) - self._at
            if len(self._text) - self._at > lines.LARGEST or not self._read_on():
                return None

    def _read_on(self) -> bool:
        """Read at least as much as is left, and drop what has been used; false at the end."""
        left = self._text[self._at :]
        read, size = [left], 0
        for piece in self._pieces:
            read.append(piece)
            size += len(piece)
            if size > len(left):
                break
        self._text, self._at = "".join(read), 0
        return size > 0
