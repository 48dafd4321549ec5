"""Stage ``select`` of a shard: cleaned documents -> held-out documents, chunks of the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crammed.data.cleaning.substring import Span, without_spans
from crammed.data.shards import (
    documents,
    finish_stage,
    read_table,
    shard_file,
    stage_result,
    write_table,
)
from crammed.data.tokenization.chunks import ChunkedText, cut_into_chunks
from crammed.files import save_array


class Split(NamedTuple):
    """A document of which both parts are used: characters of its text after cutting.

    Attributes:
        training_end: where the part to train on ends.
        heldout_begin: where the held-out part begins; what is between them is dropped.
    """

    training_end: int
    heldout_begin: int


@dataclass(frozen=True)
class ShardSelection:
    """What happens to each of a shard's n cleaned documents.

    Attributes:
        repeats: [n] how often a document is packed; 0 leaves it out.
        heldout: [n] whether it is held out.
        cuts: spans of bytes to cut out of a document, by its number.
        splits: documents that are both packed and held out, each one part.
    """

    repeats: NDArray[np.uint16]
    heldout: NDArray[np.bool_]
    cuts: dict[int, list[Span]] = field(default_factory=dict)
    splits: dict[int, Split] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectJob:
    """A shard to select from.

    Attributes:
        out: path of the shard's files from this stage on.
        chunked: whether to cut the documents into chunks for the tokenizer.
    """

    shard: Path
    out: Path
    selection: ShardSelection
    chunked: bool


@dataclass(frozen=True)
class Selected:
    """The result of selecting from a shard.

    Attributes:
        characters: characters of the documents to pack, each counted once.
    """

    characters: int


def select_shard(job: SelectJob) -> Selected:
    """Write the held-out documents and, if `job.chunked`, the chunks of those to pack."""
    if (done := stage_result(job.out, "select")) is not None:
        return Selected(**done)
    with shard_file(job.out, "heldout.jsonl").open("w", encoding="utf-8") as file:
        for text in heldout_documents(job.shard, job.selection):
            if text:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    texts = documents_to_pack(job.shard, job.selection)
    characters = lengths(texts)
    if job.chunked:
        _write_chunks(job.out, cut_into_chunks(texts))
        save_array(shard_file(job.out, "characters.npy"), characters)
    return finish_stage(job.out, "select", Selected(int(characters.sum())))


def documents_to_pack(shard: Path, selection: ShardSelection) -> list[str]:
    """The texts to pack, in order, after cutting; each once."""
    numbers = np.flatnonzero(selection.repeats).tolist()
    texts = _numbered_documents(shard, numbers, selection)
    for place, number in enumerate(numbers):
        if (split := selection.splits.get(number)) is not None:
            texts[place] = texts[place][: split.training_end]
    return texts


def heldout_documents(shard: Path, selection: ShardSelection) -> list[str]:
    """The held-out texts, in order, after cutting."""
    numbers = np.flatnonzero(selection.heldout).tolist()
    texts = _numbered_documents(shard, numbers, selection)
    for place, number in enumerate(numbers):
        if (split := selection.splits.get(number)) is not None:
            texts[place] = texts[place][split.heldout_begin :]
    return texts


def _numbered_documents(
    shard: Path, numbers: Sequence[int], selection: ShardSelection
) -> list[str]:
    return [
        without_spans(text, selection.cuts.get(number, ()))
        for number, text in zip(numbers, documents(shard, numbers), strict=True)
    ]


def lengths(texts: Sequence[str]) -> NDArray[np.int64]:
    """Characters of each text."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def heldout_lines(out: Path) -> bytes:
    """The shard's held-out documents as JSON lines."""
    return shard_file(out, "heldout.jsonl").read_bytes()


def _write_chunks(out: Path, text: ChunkedText) -> None:
    table = pa.table({"chunk": pa.array(text.unique, pa.large_string()), "count": text.counts})
    write_table(shard_file(out, "chunks.arrow"), table)
    save_array(shard_file(out, "codes.npy"), text.codes)
    save_array(shard_file(out, "ends.npy"), text.ends)


def chunk_counts(out: Path) -> pa.Table:
    """The distinct chunks of the documents to pack: columns ``chunk`` and ``count``."""
    return read_table(shard_file(out, "chunks.arrow"), ["chunk", "count"])


def read_chunks(out: Path) -> tuple[ChunkedText, NDArray[np.int64]]:
    """The chunks of the documents to pack, and the characters of each document."""
    counts = chunk_counts(out)
    text = ChunkedText(
        unique=counts["chunk"].to_pylist(),
        counts=counts["count"].to_numpy(),
        codes=np.load(shard_file(out, "codes.npy")),
        ends=np.load(shard_file(out, "ends.npy")),
    )
    return text, np.load(shard_file(out, "characters.npy"))
