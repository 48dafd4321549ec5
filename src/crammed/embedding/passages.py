"""Text as passages of whole sentences, of which neighbours in a document belong together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from crammed.config import DataConfig
from crammed.data.preparing.read.source import open_sources
from crammed.errors import InputError
from crammed.keys import key, uniform
from crammed.quantity import counted
from crammed.sentences import columns, joined, sentences
from crammed.terminal.progress import Progress

MOST_CHARACTERS = 100_000_000
"""No further document is read after this many characters: they are kept in memory as tokens."""
HELDOUT_SHARE, MOST_HELDOUT = 0.05, 500
"""Share of the documents that is held out, and how many pairs of them are scored at most."""
SHORTEST = 20
"""Characters of a passage, of which wide ones count twice; shorter ones are headlines and numbers
of pages."""
A_TOKEN = 4
"""Characters, roughly."""


@contextmanager
def _of_one_field() -> Iterator[None]:
    """Say what to do about text in another field, since no setting can name it here."""
    try:
        yield
    except InputError as error:
        fault, setting, _ = str(error).partition("data.text_field")
        if not setting:
            raise
        raise InputError(
            f"{fault.rpartition(';')[0]}; embed reads the field 'text' alone: rename yours"
        ) from error


@dataclass
class Passages:
    """Passages to learn from, and held-out pairs.

    Attributes:
        texts: in their order; some may be the same.
        pairs: numbers of two passages, the second of which follows the first in its document.
        heldout: pairs of neighbours, one from each document of which nothing is learned.
        sources: names of what was read, without the folders that lead there.
    """

    texts: list[str] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    heldout: list[tuple[str, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, sources: Sequence[str], length: int, seed: int, progress: Progress) -> Passages:
        """Read documents until `MOST_CHARACTERS`.

        A document is held out by a hash of its text, so copies of it are as well.

        Args:
            length: of the longest passage, in tokens; each has a length of its own below that.

        Raises:
            InputError: a source cannot be read, or holds too few documents.
        """
        data = DataConfig.model_validate({"sources": list(sources)})
        found, characters, documents = cls(), 0, 0
        held: set[str] = set()
        with _of_one_field(), progress.task("reading text", MOST_CHARACTERS) as task:
            opened = open_sources(data)
            found.sources = [source.name for source in opened]
            for text in (t for s in opened for part in s.parts for t in part.documents()):
                documents, characters = documents + 1, characters + len(text)
                found._add(text, length, key(seed, "passages", documents), held)
                task.update(characters, f"{len(found.texts):,} passages")
                if characters >= MOST_CHARACTERS:
                    break
        if len(found.texts) < 2:
            raise InputError(
                f"{', '.join(sources)} has {counted(documents, 'document')}, too little to learn "
                "from: name more text with --data"
            )
        return found

    def _add(self, document: str, length: int, seed: int, held: set[str]) -> None:
        passages = list(cut(document, length * A_TOKEN, random.Random(seed)))
        if uniform(document) < HELDOUT_SHARE:
            if len(passages) > 1 and len(self.heldout) < MOST_HELDOUT and document not in held:
                held.add(document)
                self.heldout.append((passages[0], passages[1]))
            return
        first = len(self.texts)
        self.texts += passages
        self.pairs += [(n, n + 1) for n in range(first, len(self.texts) - 1)]


def cut(document: str, longest: int, draw: random.Random) -> Iterator[str]:
    """Passages of whole sentences: single ones, and more up to a number of characters."""
    passage, size = "", draw.uniform(0, longest)
    for sentence, _ in sentences(document):
        passage = joined(passage, sentence)
        if len(passage) >= size and _is_long_enough(passage):
            yield passage
            passage, size = "", draw.uniform(0, longest)
    if _is_long_enough(passage):
        yield passage


def _is_long_enough(passage: str) -> bool:
    """Ideographs, kana and Hangul count twice, since fewer of them say as much."""
    wide = (each.isalpha() and columns(each) == 2 for each in passage)
    return len(passage) >= SHORTEST or len(passage) + sum(wide) >= SHORTEST
