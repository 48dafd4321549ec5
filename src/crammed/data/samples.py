"""Samples of dropped documents, kept so that every cleaning step can be audited."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from crammed.files.writing import write_gzip
from crammed.formats.lines import json_values

SAMPLES_OF_A_SHARD = 3  # for each step
MOST_SAMPLES = 20  # of a corpus, for each step
SAMPLE_CHARACTERS = 500

Sample = dict[str, str]  # with the keys step, source and text
_FILE = "dropped.jsonl.gz"


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


def write_samples(corpus: Path, samples: Iterable[Sample]) -> None:
    kept = first_of_each_step(samples, MOST_SAMPLES)
    lines = (json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in kept)
    write_gzip(corpus / _FILE, lines)


def read_samples(corpus: Path) -> Iterator[Sample]:
    """What `write_samples` kept; nothing in corpora of older versions."""
    if (corpus / _FILE).exists():
        yield from json_values(corpus / _FILE)
