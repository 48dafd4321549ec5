"""Stage ``clean`` of a shard: raw documents -> cleaned documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crammed.config import CleanConfig
from crammed.data.preparing.cleaning.near import Signer
from crammed.data.preparing.cleaning.steps import Cleaner
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import finish_stage, shard_file, stage_result, write_documents
from crammed.files.writing import save_array


@dataclass(frozen=True)
class CleanJob:
    shard: Path
    source: str
    texts: list[str]
    config: CleanConfig


@dataclass(frozen=True)
class Cleaned:
    """Counts of the documents that cleaning kept and dropped.

    Attributes:
        documents: documents kept.
        characters: their characters.
        dropped: for each step, the numbers of documents and characters that it dropped.
    """

    documents: int
    characters: int
    dropped: dict[str, list[int]]
    samples: list[Sample]


def cleaned(shard: Path) -> Cleaned | None:
    """The result of cleaning a shard; None if it is not cleaned yet."""
    result = stage_result(shard, "clean")
    return None if result is None else Cleaned(**result)


def clean_shard(job: CleanJob) -> Cleaned:
    """Clean a shard's documents and write those that are kept."""
    cleaner = _cleaner(job.config)
    dropped: dict[str, list[int]] = {step: [0, 0] for step in cleaner.steps}
    samples: list[Sample] = []
    kept: list[str] = []
    for text in job.texts:
        verdict = cleaner(text)
        if verdict.dropped_by is None:
            kept.append(_encodable(verdict.text))
            continue
        counts = dropped[verdict.dropped_by]
        counts[0] += 1
        counts[1] += len(text)
        if counts[0] <= SAMPLES_OF_A_SHARD:
            samples.append(sample(verdict.dropped_by, job.source, _encodable(text)))
    write_documents(job.shard, kept)
    if job.config.near is not None:
        save_array(shard_file(job.shard, "near.npy"), _signer(job.config.near)(kept))
    result = Cleaned(len(kept), sum(map(len, kept)), dropped, samples)
    return finish_stage(job.shard, "clean", result)


def _encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode: halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=2)
def _cleaner(config: CleanConfig) -> Cleaner:
    return Cleaner(config)


@lru_cache(maxsize=2)
def _signer(jaccard: float) -> Signer:
    return Signer(jaccard)
