"""Samples of dropped documents, kept so that every cleaning step can be audited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

SAMPLES_OF_A_SHARD = 3
"""Samples that each step keeps from one shard."""
SAMPLE_CHARACTERS = 500

Sample = dict[str, str]
"""Keys: step, source, text."""


def sample(step: str, source: str, text: str) -> Sample:
    """A sample of a document that `step` dropped."""
    return {"step": step, "source": source, "text": text[:SAMPLE_CHARACTERS]}


def first_of_each_step(samples: Iterable[Sample], most: int) -> Iterator[Sample]:
    """The samples in order, at most `most` from each step."""
    seen: Counter[str] = Counter()
    for each in samples:
        seen[each["step"]] += 1
        if seen[each["step"]] <= most:
            yield each
