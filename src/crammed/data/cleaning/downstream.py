"""Sentences of the evaluation tasks, to be found in text that a model is to be trained on.

A model that has read the sentences it will be asked about scores higher than it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.files import json_hash
from crammed.tasks.read import splits_in
from crammed.tasks.task import load_suite

SHORTEST = 10
"""Sentences of fewer words may stand anywhere without having been copied."""

_WORD = re.compile(r"[^\W_]+")
_ASCII_WORDS = {
    number: chr(number).lower() if chr(number).isalnum() else " " for number in range(128)
}
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word is multiplied away
_TABLE_BITS = 22


def words(text: str) -> list[str]:
    """The text's runs of letters and digits, in lower case."""
    if text.isascii():
        return text.translate(_ASCII_WORDS).split()
    return _WORD.findall(text.lower())


class Downstream:
    """Finds whole downstream sentences of `SHORTEST` or more words in documents.

    A sentence is any text column of any row of any split, train and validation alike. Only
    letters and digits count, case does not. The search is exact: the hashes of all windows of
    `SHORTEST` words say where to compare.
    """

    def __init__(self, folder: Path) -> None:
        """Read the GLUE tasks of `folder`, in any layout.

        Raises:
            InputError: no tasks there, no sentence in them, or a file that cannot be read.
        """
        sentences = [split for text in _texts(folder) if len(split := words(text)) >= SHORTEST]
        if not sentences:
            raise InputError(f"the tasks in {folder} hold no sentence of {SHORTEST} words or more")
        self._numbers: dict[str, int] = {}
        """Number of each word that begins a sentence or stands near its beginning, from 1."""
        for sentence in sentences:
            for word in sentence[:SHORTEST]:
                self._numbers.setdefault(word, len(self._numbers) + 1)
        beginnings = self._windows([word for each in sentences for word in each[:SHORTEST]])
        self._sentences: dict[int, dict[str, None]] = {}
        """By the hash of their first words; a dict for a set in the order of the files."""
        for beginning, sentence in zip(beginnings[::SHORTEST].tolist(), sentences, strict=True):
            self._sentences.setdefault(beginning, {})[" ".join(sentence)] = None
        self._maybe = np.zeros(1 << _TABLE_BITS, np.bool_)
        """Whether a hash of these first bits can be one of `_sentences`: rules out nearly all."""
        self._maybe[_first_bits(beginnings[::SHORTEST])] = True

    def sentence_in(self, text: str) -> str | None:
        """The first downstream sentence, normalised, that the text holds; None if it has none."""
        split = words(text)
        hashes = self._windows(split)
        for start in np.flatnonzero(self._maybe[_first_bits(hashes)]).tolist():
            for sentence in self._sentences.get(int(hashes[start]), ()):
                if " ".join(split[start : start + sentence.count(" ") + 1]) == sentence:
                    return sentence
        return None

    def _windows(self, split: Sequence[str]) -> NDArray[np.uint64]:
        """Hash of the `SHORTEST` words from each place on, [max(0, words - SHORTEST + 1)]."""
        count = max(0, len(split) - SHORTEST + 1)
        get = self._numbers.get
        numbers = np.fromiter((get(word, 0) for word in split), np.uint64, len(split))
        hashes = np.zeros(count, np.uint64)
        for n in range(SHORTEST):
            hashes = hashes * _FACTOR + numbers[n : n + count]
        return hashes * _FACTOR


def _first_bits(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hashes >> np.uint64(64 - _TABLE_BITS)


def fingerprint(folder: Path) -> str:
    """What identifies the content of the tasks in `folder`."""
    return json_hash([split.digest() for split in splits_in(load_suite("glue"), folder)])


def _texts(folder: Path) -> Iterator[str]:
    """Text columns of every row of every split."""
    for split in splits_in(load_suite("glue"), folder):
        for _, record in split.records():
            for column, value in record.items():
                if column != "label" and isinstance(value, str):
                    yield value
