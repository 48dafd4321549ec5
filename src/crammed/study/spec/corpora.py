"""The corpora of a study: one for all arms, or one for each way in which arms make theirs.

An arm has its own corpus if its words set ``data`` or ``tokenizer``, or an order of rows that the
base's corpus does not store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from crammed.budget import Budget
from crammed.data.corpus import Corpus
from crammed.errors import InputError

Key = tuple[str, ...]
_OF_CORPUS = ("data.", "data=", "tokenizer.", "tokenizer=")


def is_of_corpus(word: str) -> bool:
    """Whether an override says how text becomes a corpus."""
    return "=" in word and word.startswith(_OF_CORPUS)


def sets_order(word: str) -> bool:
    """Whether an override says in which order rows are read."""
    return word.startswith(("order.by=", "order="))


def decides_corpus(word: str) -> bool:
    """Whether an arm may have a corpus of its own because of this override."""
    return is_of_corpus(word) or sets_order(word)


def of_training(words: Sequence[str]) -> list[str]:
    """Recipe and overrides, without overrides that say how text becomes a corpus."""
    return [word for word in words if not is_of_corpus(word)]


def key_of(words: Sequence[str]) -> Key:
    """The words of an arm that decide its corpus: a recipe may set the order of rows."""
    recipes = [word for word in words if "=" not in word]
    return (*recipes, *sorted(filter(decides_corpus, words)))


class ArmCorpora(Protocol):
    """What must be known about a study's corpora to configure its arms."""

    def fixed(self, words: Sequence[str], budget: Budget) -> dict[str, Any]:
        """What corpus and budget decide in the configuration of an arm, by section.

        Args:
            words: recipe and overrides of the arm.

        Raises:
            InputError: there is no corpus for them.
        """
        ...

    def rows(self, sha256: str | None) -> int | None:
        """The number of rows of the corpus with this hash; None if not known yet."""
        ...

    def vocabulary(self, sha256: str | None) -> int | None:
        """The vocabulary size of the corpus with this hash; None if not known yet."""
        ...


@dataclass(frozen=True)
class Corpora:
    """The corpora of a study.

    Attributes:
        base: that of the study's base; all others hold out the same documents.
        own: the arms' corpora by `key_of` their words, in a study that prepares its corpora; None
            in one that was given a corpus.
    """

    base: Corpus
    own: Mapping[Key, Corpus] | None = None

    @cached_property
    def _by_hash(self) -> dict[str, Corpus]:
        return {each.sha256: each for each in (self.base, *(self.own or {}).values())}

    def of(self, words: Sequence[str]) -> Corpus:
        """The corpus of an arm with these words, a recipe and overrides.

        Raises:
            InputError: the words ask for another corpus than the one that was given.
        """
        if self.own is not None:
            return self.own[key_of(words)]
        if taken := [word for word in words if is_of_corpus(word)]:
            raise InputError(
                f"{taken[0]} is a property of the corpus, which is prepared already: give the "
                "study its text, with --data FILES instead of --corpus"
            )
        return self.base

    def fixed(self, words: Sequence[str], budget: Budget) -> dict[str, Any]:
        return {**self.of(words).settings(), "budget": {"limit": budget}}

    def rows(self, sha256: str | None) -> int:
        return self._by_hash[sha256 or self.base.sha256].rows

    def vocabulary(self, sha256: str | None) -> int:
        return self._by_hash[sha256 or self.base.sha256].vocab_size

    @property
    def all(self) -> list[Corpus]:
        """Every corpus once, the base's first."""
        return list(self._by_hash.values())
