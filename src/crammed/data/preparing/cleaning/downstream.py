"""Finds sentences of the evaluation tasks in text to train on.

A model that has already read the sentences it is tested on scores higher than it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.files.hashes import json_hash
from crammed.tasks.read import splits_in
from crammed.tasks.task import load_suite

SHORTEST = 10
"""Words; shorter sentences may occur anywhere without having been copied."""

_WORD = re.compile(r"[^\W_]+")
_ASCII_WORDS = {
    number: chr(number).lower() if chr(number).isalnum() else " " for number in range(128)
}
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses no bit of a word
_TABLE_BITS = 22


def normalised_words(text: str) -> list[str]:
    """The text's runs of letters and digits, in lower case."""
    if text.isascii():
        return text.translate(_ASCII_WORDS).split()
    return _WORD.findall(text.lower())


class Downstream:
    """Finds whole downstream sentences of `SHORTEST` or more words in documents.

    Every text column of every row is a sentence, in training and validation splits alike. Only
    letters and digits count; case does not. The search is exact: hashes of all windows of
    `SHORTEST` words only show where to compare.
    """

    def __init__(self, folder: Path) -> None:
        """Read the GLUE tasks of `folder`, in any layout.

        Raises:
            InputError: the folder has no tasks, they have no sentence that is long enough, or a
                file cannot be read.
        """
        sentences = [
            words for text in _texts(folder) if len(words := normalised_words(text)) >= SHORTEST
        ]
        if not sentences:
            raise InputError(f"the tasks in {folder} hold no sentence of {SHORTEST} words or more")
        self._numbers: dict[str, int] = {}
        """Number, from 1, of each word among the first `SHORTEST` of a sentence."""
        for sentence in sentences:
            for word in sentence[:SHORTEST]:
                self._numbers.setdefault(word, len(self._numbers) + 1)
        beginnings = self._windows([word for each in sentences for word in each[:SHORTEST]])
        self._sentences: dict[int, dict[str, None]] = {}
        """Sentences by the hash of their first words; the inner dict is an ordered set."""
        for beginning, sentence in zip(beginnings[::SHORTEST].tolist(), sentences, strict=True):
            self._sentences.setdefault(beginning, {})[" ".join(sentence)] = None
        self._maybe = np.zeros(1 << _TABLE_BITS, np.bool_)
        """Whether any hash in `_sentences` begins with these bits: rules out nearly all windows."""
        self._maybe[_first_bits(beginnings[::SHORTEST])] = True

    def sentence_in(self, text: str) -> str | None:
        """The first downstream sentence in the text, normalised; None if there is none."""
        words = normalised_words(text)
        hashes = self._windows(words)
        for start in np.flatnonzero(self._maybe[_first_bits(hashes)]).tolist():
            for sentence in self._sentences.get(int(hashes[start]), ()):
                if " ".join(words[start : start + sentence.count(" ") + 1]) == sentence:
                    return sentence
        return None

    def _windows(self, words: Sequence[str]) -> NDArray[np.uint64]:
        """Hash of each window of `SHORTEST` words, [max(0, len(words) - SHORTEST + 1)]."""
        count = max(0, len(words) - SHORTEST + 1)
        get = self._numbers.get
        numbers = np.fromiter((get(word, 0) for word in words), np.uint64, len(words))
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
    """The text columns of every row of every split."""
    for split in splits_in(load_suite("glue"), folder):
        for _, record in split.records():
            for column, value in record.items():
                if column != "label" and isinstance(value, str):
                    yield value
