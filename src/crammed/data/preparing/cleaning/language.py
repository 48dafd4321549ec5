"""Keeps documents in certain languages, which `py3langid` identifies.

Its model is a naive Bayes classifier of byte n-grams that was trained on labelled text, so a corpus
that it has chosen is outside the rules of docs/rules.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from crammed.errors import InputError
from crammed.extras import import_extra, version_of

BEGINNING = 1000
"""Characters of a document that are looked at: the library reads about a megabyte a second."""


def language_filter(languages: Sequence[str]) -> Callable[[str], str | None]:
    """A step that drops documents whose most likely language is none of these.

    Text without any words, such as numbers, is in none.

    Raises:
        InputError: the library is not installed, or does not know one of the codes.
    """
    library = identification_library()
    identifier = library.LanguageIdentifier.from_model_file(library.MODEL_FILE, norm_probs=True)
    known = identifier.labels
    for code in languages:
        if code not in known:
            near = ", ".join(difflib.get_close_matches(code.lower(), known, 5, 0.4)) or "none"
            raise InputError(
                f"data.clean.languages: no language {code!r}: codes are those of ISO 639, such as "
                f"en and de; the nearest are {near}"
            )
    wanted = frozenset(languages)

    def step(text: str) -> str | None:
        return text if identifier.classify(text[:BEGINNING])[0] in wanted else None

    return step


def identification_library() -> Any:
    """The library that identifies languages; if missing, an `InputError` names the extra."""
    return import_extra("py3langid.langid", "language", "data.clean.languages")


def identified_by() -> str:
    """The library and its version, on which its answers depend."""
    return f"py3langid {version_of('py3langid')}"
