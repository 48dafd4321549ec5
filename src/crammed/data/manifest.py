"""The manifest of a corpus: what it was made of, what every step did, what every file must be."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import crammed
from crammed.config import DataConfig, TokenizerConfig
from crammed.data.cleaning.steps import settings_of
from crammed.data.heldout import heldout_rows
from crammed.data.ingest import Text
from crammed.data.selection import Choice
from crammed.data.shards import Packed
from crammed.data.sources import open_sources
from crammed.data.statistics import Statistics
from crammed.data.tokenization.tokenizer import Specials, vocabulary_size
from crammed.errors import InputError
from crammed.files import disk_faults, sha256, write_json

SCHEMA = 2
MOST_SAMPLES = 20
"""Dropped documents kept for audit, of every step."""


def write_manifest(
    corpus: Path,
    data: DataConfig,
    tokenizer_config: TokenizerConfig,
    text: Text,
    choice: Choice,
    packed: Sequence[Packed],
    statistics: Statistics,
    tokenizer: Tokenizer,
    tokens_left_out: int,
) -> None:
    """Write manifest.json, last of all files, and dropped.jsonl.gz before it.

    Raises:
        InputError: what is held out makes no row.
    """
    length = data.row_length
    heldout = heldout_rows(tokenizer, corpus / "heldout.jsonl.gz", data.heldout_rows, length)
    if not len(heldout.ids):
        raise InputError(f"too little text: what is held out makes no row of {length}")
    _write_samples(corpus / "dropped.jsonl.gz", text, choice, packed)
    tokens = sum(each.tokens for each in packed)
    manifest = {
        "schema": SCHEMA,
        "crammed": crammed.__version__,
        "data": {
            **data.model_dump(mode="json", exclude={"sources", "unreadable"}),
            "clean": settings_of(data.clean),
        },
        "tokenizer": tokenizer_config.model_dump(mode="json", exclude={"file"}),
        "sources": [
            {
                **source,
                "documents": statistics.documents[source["name"]],
                "characters": statistics.characters[source["name"]],
            }
            for source in text.sources
        ],
        "skipped": text.skipped,
        "steps": _steps(data, text, choice, packed),
        "documents": sum(each.unique for each in packed),
        "characters": sum(each.characters for each in packed),
        "tokens": tokens,
        "rows": (tokens - tokens_left_out) // length,
        "row_length": length,
        "tokens_left_out": tokens_left_out,
        "vocab_size": vocabulary_size(tokenizer),
        "statistics": statistics.summary(Specials.of(tokenizer).unk),
        "heldout": {
            "documents": choice.heldout_documents,
            "characters": choice.heldout_characters,
            "rows": len(heldout.ids),
            "tokens_per_character": heldout.tokens_per_character,
            "unigram_cross_entropy": unigram_cross_entropy(statistics.token_counts, heldout.ids),
        },
        "files": _files(corpus, packed),
    }
    write_json(corpus / "manifest.json", manifest)


def changed_files(manifest: dict[str, Any], data: DataConfig) -> list[str]:
    """Names of the sources' files that are others than when the corpus was made, or new.

    Files that are gone change nothing, and standard input cannot be asked again.
    """
    known = {json.dumps(part) for source in manifest["sources"] for part in source["parts"]}
    left_out = {each["part"] for each in manifest["skipped"]}
    asked = tuple(each for each in data.sources if each.max_characters is None and each.is_on_disk)
    try:
        sources = open_sources(data.model_copy(update={"sources": asked})) if asked else []
    except InputError:
        return []
    return [
        part.name
        for source in sources
        for part in source.parts
        if part.name not in left_out and json.dumps(part.fingerprint()) not in known
    ]


def _steps(
    data: DataConfig, text: Text, choice: Choice, packed: Sequence[Packed]
) -> list[dict[str, Any]]:
    """Documents kept and dropped by each step, in order, and the characters dropped."""
    counts = [shard.counts for shard in text.shards]
    dropped = {
        step: [sum(each.dropped[step][i] for each in counts) for i in (0, 1)]
        for step in counts[0].dropped
    }
    kept = sum(each.documents for each in counts) + sum(d for d, _ in dropped.values())
    steps: list[dict[str, Any]] = []
    for step, (documents, characters) in dropped.items():
        kept -= documents
        steps.append({"step": step, "kept": kept, "dropped": documents, "characters": characters})
    steps += choice.steps
    if data.clean.max_tokens_per_character is not None:
        steps.append(
            {
                "step": "tokens per character",
                "kept": sum(each.unique for each in packed),
                "dropped": sum(each.dense for each in packed),
                "characters": sum(each.dense_characters for each in packed),
            }
        )
    return steps


def _files(corpus: Path, packed: Sequence[Packed]) -> dict[str, dict[str, Any]]:
    """Size and hash of every file; workers hashed the rows that they wrote."""
    hashes = {f"rows-{number:05d}.bin": each.sha256 for number, each in enumerate(packed)}
    return {
        file.name: {"bytes": file.stat().st_size, "sha256": hashes.get(file.name) or sha256(file)}
        for file in sorted(corpus.iterdir())
        if file.name != "manifest.json"
    }


def _write_samples(path: Path, text: Text, choice: Choice, packed: Sequence[Packed]) -> None:
    """The first documents that each step dropped."""
    samples: list[dict[str, str]] = []
    for shard in text.shards:
        samples += shard.counts.samples
    samples += choice.samples
    for each in packed:
        samples += each.samples
    written: Counter[str] = Counter()
    lines: list[bytes] = []
    for sample in samples:
        written[sample["step"]] += 1
        if written[sample["step"]] <= MOST_SAMPLES:
            lines.append(json.dumps(sample, ensure_ascii=False).encode() + b"\n")
    write_gzip(path, lines)


def write_gzip(path: Path, chunks: Iterable[bytes]) -> None:
    """A gzip file whose bytes depend on its content alone."""
    with disk_faults(path), path.open("wb") as raw:
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for chunk in chunks:
                file.write(chunk)


def unigram_cross_entropy(counts: NDArray[np.int64], rows: NDArray[np.int64]) -> float:
    """Nats per held-out token under the training text's token frequencies, add-one smoothed."""
    probabilities = (counts + 1) / (counts.sum() + len(counts))
    return float(-np.log(probabilities[rows]).mean())
