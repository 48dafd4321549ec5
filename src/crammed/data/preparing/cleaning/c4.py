"""The rules of C4 (Raffel et al. 2020, section 2.2), which are made for English.

Lines must end in Latin punctuation and have five words between spaces, so that all text in Chinese,
Hindi, Thai or Urdu, for instance, is dropped.
"""

from __future__ import annotations

import re

from crammed.data.preparing.cleaning.gopher import ELLIPSES

_TERMINAL = (".", "!", "?", '"', "\u201d")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_SENTENCE_END = re.compile("[.!?][\"')\u2019\u201d]*(?=\\s|$)")
_UNWANTED_LINE = re.compile(
    "javascript|terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
)
_FEWEST_WORDS = 5
_FEWEST_SENTENCES = 3


def by_c4_rules(text: str) -> str | None:
    """The good lines of a document, or None to drop it.

    The thresholds are those of the journal version and of the published code: 5 words in a line
    and 3 sentences in a document (an earlier version has 3 and 5). The list of bad words, the
    language detector and the removal of repeated spans of three sentences are left out.
    """
    if "{" in text or "}" in text or "lorem ipsum" in text.lower():
        return None
    lines = [_CITATION.sub("", line).strip() for line in text.split("\n")]
    kept = "\n".join([line for line in lines if _is_good_line(line)])
    return kept if len(_SENTENCE_END.findall(kept)) >= _FEWEST_SENTENCES else None


def _is_good_line(line: str) -> bool:
    return (
        line.endswith(_TERMINAL)
        and not line.endswith(ELLIPSES)
        and len(line.split()) >= _FEWEST_WORDS
        and not _UNWANTED_LINE.search(line.lower())
    )
