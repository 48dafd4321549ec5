"""The steps that clean one document, in order.

unicode     normalises spellings of the same text; changes it, never drops it
personal    masks personal data, before any sample is kept
empty       drops what has no text
length      drops what has too few or too many characters
languages   drops what is in other languages than those wanted
gopher      the quality and repetition rules of Gopher
c4          the rules of C4; also changes the text
function    a function of the user's own; may change the text
downstream  drops what contains a text of an evaluation task, or a passage of it
entities    puts words for their kinds in place of named entities; last, since it takes longest, and
            the steps before it look for text as it is elsewhere

gopher and c4 are made for English: one demands English stop words, the other lines that end in
Latin punctuation, and both count words between spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from crammed.config import CleanConfig, DownstreamConfig
from crammed.data.preparing.cleaning import entities, own
from crammed.data.preparing.cleaning.downstream import Downstream, downstream_settings
from crammed.data.preparing.cleaning.english import by_c4_rules, by_gopher_rules
from crammed.data.preparing.cleaning.language import language_filter
from crammed.data.preparing.cleaning.personal import masked
from crammed.data.preparing.cleaning.unicode import normalise

Step = Callable[[str], str | None]
"""Returns the document for the next step, or None to drop it."""
Steps = tuple[tuple[str, Step], ...]
"""Steps with their names."""
FOR_ENGLISH = ("gopher", "c4")
"""Steps that drop all text in some other languages, if not in all of them."""
_SHOWN_BEFORE = 60
"""Characters before a change that a sample of it begins with."""


@lru_cache(maxsize=2)
def steps_of(config: CleanConfig) -> Steps:
    """The active steps, in order; what they make of a document depends only on its text.

    Raises:
        InputError: the data of `config.downstream` is missing, or cannot be read; or
            `config.function` is not a function, or `config.entities` no pipeline; or a language is
            unknown.
    """
    function, pipeline = config.function, config.entities
    every: list[tuple[str, Step | None]] = [
        ("unicode", normalise if config.unicode else None),
        ("personal", masked if config.personal == "mask" else None),
        ("empty", lambda text: text if text.strip() else None),
        ("length", _unless_out_of(config.min_characters, config.max_characters)),
        ("languages", language_filter(config.languages) if config.languages is not None else None),
        ("gopher", by_gopher_rules if config.gopher else None),
        ("c4", by_c4_rules if config.c4 else None),
        ("function", own.own_filter(function) if function is not None else None),
        ("downstream", _unless_downstream(config.downstream)),
        ("entities", entities.entity_step(pipeline) if pipeline is not None else None),
    ]
    return tuple((name, step) for name, step in every if step is not None)


class Change(NamedTuple):
    """A document before and after a step."""

    step: str
    before: str
    after: str

    def excerpt(self) -> str:
        """The text after the step, from a little before the first difference."""
        pairs = enumerate(zip(self.before, self.after, strict=False))
        place = next((n for n, (one, other) in pairs if one != other), len(self.after))
        return self.after[max(0, place - _SHOWN_BEFORE) :]


@dataclass(frozen=True)
class Verdict:
    """The outcome of cleaning one document.

    Attributes:
        text: the document after the last step it passed.
        dropped_by: name of the step that dropped it; None if it was kept.
        changes: what steps changed that change more than its spelling.
    """

    text: str
    dropped_by: str | None
    changes: tuple[Change, ...] = ()


def clean(text: str, steps: Steps) -> Verdict:
    """Apply steps to a document until one drops it."""
    changes: tuple[Change, ...] = ()
    for name, step in steps:
        left = step(text)
        if left is None:
            return Verdict(text, name)
        if left != text and step is not normalise:
            changes = (*changes, Change(name, text, left))
        text = left
    return Verdict(text, None, changes)


def for_workers(config: CleanConfig) -> CleanConfig:
    """The same, with files that workers find in any folder, and the hash of code that they run.

    Raises:
        InputError: the code cannot be read, or is wrong; a language is unknown; or there is no such
            pipeline.
    """
    steps_of.cache_clear()  # the tasks may have changed
    found: dict[str, Any] = {}
    if config.downstream is not None:
        found["downstream"] = tuple(suite.absolute() for suite in config.downstream)
    if config.function is not None:
        found["function"] = own.located(config.function)
        own.own_filter(found["function"])  # now rather than when it is needed
    if config.languages is not None:
        language_filter(config.languages)
    if config.entities is not None:
        found["entities"] = entities.located(config.entities)
        entities.entity_step(found["entities"])
    return config.model_copy(update=found)


def settings_of(config: CleanConfig) -> dict[str, Any]:
    """The settings, with what they name on this machine replaced by a hash of its content."""
    settings = config.model_dump(mode="json")
    if config.function is not None:
        settings["function"] = own.without_folder(config.function)
    if config.entities is not None:
        settings["entities"] = entities.without_folder(config.entities)
    if config.downstream is not None:
        settings["downstream"] = downstream_settings(config.downstream)
    return settings


def _unless_out_of(fewest: int, most: int | None) -> Step | None:
    if fewest == 1 and most is None:
        return None
    return lambda text: text if fewest <= len(text) <= (most or len(text)) else None


def _unless_downstream(suites: Sequence[DownstreamConfig] | None) -> Step | None:
    if suites is None:
        return None
    tasks = Downstream(suites)
    return lambda text: None if tasks.occurs_in(text) else text
