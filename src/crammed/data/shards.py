"""What is done to one shard of text, in a worker.

A shard is some 16 MB of documents of one part (a file). NAME below is the shard's own:

clean    documents -> NAME.documents.arrow (text, digest, characters), NAME.near.npy
split    what stays of them -> NAME.words.arrow, NAME.codes.npy, NAME.ends.npy, NAME.heldout.jsonl
pack     words, or texts -> rows-NNNNN.bin, NAME.tail.npy, NAME.starts.npy
score    rows -> a score for every row and stored order

Every stage writes NAME.STAGE.json last: where it is, the stage is done and its result is read
from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.config import CleanConfig
from crammed.data.cleaning.near import Signer
from crammed.data.cleaning.steps import Cleaner
from crammed.data.corpus import token_dtype, write_rows
from crammed.data.statistics import Statistics
from crammed.data.tokenization.tokenizer import Specials
from crammed.data.tokenization.words import SplitText, WordEncoder, split
from crammed.files import disk_faults, read_json, save_array, sha256, write_json

SHARD_CHARACTERS = 16_000_000
SAMPLES = 3
"""Documents kept for audit, of every step and shard."""
SAMPLE_CHARACTERS = 500
DIGEST_BYTES = 16
Result = TypeVar("Result", "Cleaned", "SplitShard", "Packed")
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Selection:
    """What becomes of each of a shard's n documents.

    Attributes:
        repeats: [n] how often it is packed; 0 leaves it out.
        heldout: [n] whether it is held out.
        cuts: byte spans to cut out of it, by its number.
    """

    repeats: NDArray[np.uint16]
    heldout: NDArray[np.bool_]
    cuts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class CleanJob:
    shard: Path
    source: str
    texts: list[str]
    config: CleanConfig


@dataclass(frozen=True)
class Cleaned:
    """Counts of the documents that every cleaning step kept and dropped."""

    documents: int
    characters: int
    dropped: dict[str, list[int]]
    samples: list[dict[str, str]]


def cleaned(shard: Path) -> Cleaned | None:
    """What cleaning found, where the shard is cleaned."""
    found = _done(shard, "clean")
    return None if found is None else Cleaned(**found)


def clean(job: CleanJob) -> Cleaned:
    """Clean a shard's documents and write those that stay."""
    cleaner = _cleaner(job.config)
    dropped: dict[str, list[int]] = {step: [0, 0] for step in cleaner.steps}
    samples: list[dict[str, str]] = []
    kept: list[str] = []
    for text in job.texts:
        verdict = cleaner(text)
        if verdict.dropped_by is None:
            kept.append(_encodable(verdict.text))
            continue
        counts = dropped[verdict.dropped_by]
        counts[0] += 1
        counts[1] += len(text)
        if counts[0] <= SAMPLES:
            samples.append(sample(verdict.dropped_by, job.source, _encodable(text)))
    characters = [len(text) for text in kept]
    table = pa.table(
        {
            "text": pa.array(kept, pa.large_string()),
            "digest": pa.array(map(_digest, kept), pa.binary(DIGEST_BYTES)),
            "characters": pa.array(characters, pa.int64()),
        }
    )
    _write_table(_file(job.shard, "documents.arrow"), table)
    if job.config.near is not None:
        save_array(_file(job.shard, "near.npy"), _signer(job.config.near)(kept))
    return _finish(job.shard, "clean", Cleaned(len(kept), sum(characters), dropped, samples))


def _encodable(text: str) -> str:
    """Replace what UTF-8 cannot hold: halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def sample(step: str, source: str, text: str) -> dict[str, str]:
    """A dropped document for the audit."""
    return {"step": step, "source": source, "text": text[:SAMPLE_CHARACTERS]}


@lru_cache(maxsize=2)
def _cleaner(config: CleanConfig) -> Cleaner:
    return Cleaner(config)


@lru_cache(maxsize=2)
def _signer(jaccard: float) -> Signer:
    return Signer(jaccard)


def digests(shard: Path) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Of every document: its digest as two words [n, 2], and its characters [n]."""
    table = read_table(_file(shard, "documents.arrow"), ["digest", "characters"])
    packed = b"".join(
        chunk.buffers()[1].to_pybytes()[: len(chunk) * DIGEST_BYTES]
        for chunk in table["digest"].chunks
    )
    return np.frombuffer(packed, ">u8").reshape(-1, 2).astype(np.uint64), table[
        "characters"
    ].to_numpy()


def bands(shard: Path) -> NDArray[np.uint64]:
    """Of every document: the hashes that near-duplicates share, [n, bands]."""
    found: NDArray[np.uint64] = np.load(_file(shard, "near.npy"), mmap_mode="r")
    return found


def texts(shard: Path, numbers: Sequence[int] | None = None) -> list[str]:
    """The cleaned documents, or those of these numbers."""
    if numbers is not None and not len(numbers):
        return []
    column = read_table(_file(shard, "documents.arrow"), ["text"])["text"]
    if numbers is not None:
        column = column.take(pa.array(numbers, pa.int64()))
    found: list[str] = column.to_pylist()
    return found


def selected(shard: Path, selection: Selection) -> list[str]:
    """The documents to pack, in order, without what is cut out of them."""
    return _without_cuts(shard, np.flatnonzero(selection.repeats).tolist(), selection)


def _without_cuts(shard: Path, numbers: Sequence[int], selection: Selection) -> list[str]:
    return [
        cut(text, selection.cuts.get(number, ()))
        for number, text in zip(numbers, texts(shard, numbers), strict=True)
    ]


def cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without these spans of its UTF-8 bytes."""
    if not spans:
        return text
    whole, kept, place = text.encode(), [], 0
    for start, end in spans:
        kept.append(whole[place:start])
        place = end
    return b"".join([*kept, whole[place:]]).decode()


@dataclass(frozen=True)
class SplitJob:
    shard: Path
    out: Path
    selection: Selection
    words_first: bool


@dataclass(frozen=True)
class SplitShard:
    documents: int
    characters: int


def split_shard(job: SplitJob) -> SplitShard:
    """Write the held-out documents and, where words come first, the words of the others."""
    if (found := _done(job.out, "split")) is not None:
        return SplitShard(**found)
    held = np.flatnonzero(job.selection.heldout).tolist()
    with _file(job.out, "heldout.jsonl").open("w", encoding="utf-8") as file:
        for text in _without_cuts(job.shard, held, job.selection):
            if text:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    documents = selected(job.shard, job.selection)
    if job.words_first:
        words = split(documents)
        table = pa.table(
            {"chunk": pa.array(words.unique, pa.large_string()), "count": words.counts}
        )
        _write_table(_file(job.out, "words.arrow"), table)
        save_array(_file(job.out, "codes.npy"), words.codes)
        save_array(_file(job.out, "ends.npy"), words.ends)
        save_array(_file(job.out, "characters.npy"), _lengths(documents))
    characters = int(_lengths(documents).sum())
    return _finish(job.out, "split", SplitShard(len(documents), characters))


def _lengths(documents: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(len, documents), np.int64, len(documents))


def word_counts(out: Path) -> pa.Table:
    """Columns chunk and count of a split shard."""
    return read_table(_file(out, "words.arrow"), ["chunk", "count"])


def heldout_lines(out: Path) -> bytes:
    """The shard's held-out documents as JSON lines."""
    return _file(out, "heldout.jsonl").read_bytes()


@dataclass(frozen=True)
class PackJob:
    shard: Path
    out: Path
    rows: Path
    source: str
    selection: Selection
    words_first: bool
    tokenizer: Path
    row_length: int
    cls: bool
    most_tokens_per_character: float | None


@dataclass(frozen=True)
class Packed:
    """What a shard came to.

    Attributes:
        unique: documents packed, each counted once.
        dense, dense_characters: dropped for too many tokens a character.
        tokens: all of the stream, [SEP] and repeats included.
        statistics: `Statistics` of it, JSON-able.
    """

    unique: int
    characters: int
    dense: int
    dense_characters: int
    samples: list[dict[str, str]]
    tokens: int
    rows: int
    sha256: str | None
    statistics: dict[str, Any]


def pack(job: PackJob) -> Packed:
    """Write a shard's documents as rows; what makes no whole row becomes its tail."""
    if (found := _done(job.out, "pack")) is not None:
        return Packed(**found)
    encoder, special = _encoder(job.tokenizer)
    if job.words_first:
        characters = np.load(_file(job.out, "characters.npy"))
        ids, ends = encoder.encode(_words(job.out))
    else:
        documents = selected(job.shard, job.selection)
        characters = _lengths(documents)
        ids, ends = encoder.encode_texts(documents)
    lengths = np.diff(ends, prepend=0)
    most = job.most_tokens_per_character
    keep = np.ones(len(ends), bool) if most is None else lengths < most * characters
    dense = np.flatnonzero(~keep)
    repeats = job.selection.repeats[job.selection.repeats > 0]

    order = np.repeat(np.flatnonzero(keep), repeats[keep])
    stream, starts = _join(ids, ends, order, special, job.cls)
    statistics = Statistics.of(
        job.source, characters[order], lengths[order], stream, encoder.vocab_size
    )
    dtype = token_dtype(encoder.vocab_size)
    tail = write_rows(job.rows, stream, job.row_length, dtype)
    save_array(_file(job.out, "tail.npy"), tail)
    save_array(_file(job.out, "starts.npy"), starts)
    rows = (len(stream) - len(tail)) // job.row_length
    return _finish(
        job.out,
        "pack",
        Packed(
            unique=int(keep.sum()),
            characters=int(characters[keep].sum()),
            dense=len(dense),
            dense_characters=int(characters[dense].sum()),
            samples=_dense_samples(job, dense),
            tokens=len(stream),
            rows=rows,
            sha256=sha256(job.rows) if rows else None,
            statistics=statistics.to_json(),
        ),
    )


def _words(out: Path) -> SplitText:
    table = word_counts(out)
    return SplitText(
        unique=table["chunk"].to_pylist(),
        counts=table["count"].to_numpy(),
        codes=np.load(_file(out, "codes.npy")),
        ends=np.load(_file(out, "ends.npy")),
    )


def _join(
    ids: NDArray[np.uint32],
    ends: NDArray[np.int64],
    order: NDArray[np.int64],
    special: Specials,
    cls: bool,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The documents of these numbers one after the other, and where each begins."""
    before = np.array([special.cls] if cls else [], np.uint32)
    after = np.array([special.sep], np.uint32)
    begins = np.concatenate([[0], ends])
    pieces = [np.empty(0, np.uint32)]
    for number in order.tolist():
        pieces += (before, ids[begins[number] : begins[number + 1]], after)
    lengths = np.diff(ends, prepend=0)[order] + len(before) + 1
    return np.concatenate(pieces), np.cumsum(lengths) - lengths


def _dense_samples(job: PackJob, dense: NDArray[np.int64]) -> list[dict[str, str]]:
    numbers = np.flatnonzero(job.selection.repeats)[dense[:SAMPLES]].tolist()
    return [sample("tokens per character", job.source, text) for text in texts(job.shard, numbers)]


@lru_cache(maxsize=1)
def _encoder(tokenizer: Path) -> tuple[WordEncoder, Specials]:
    loaded = Tokenizer.from_file(str(tokenizer))
    return WordEncoder(loaded), Specials.of(loaded)


def tail_and_starts(out: Path) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The tokens of a packed shard that made no whole row, and where its documents begin."""
    return np.load(_file(out, "tail.npy")), np.load(_file(out, "starts.npy"))


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """These columns of an Arrow file, nothing else of it read."""
    with pa.memory_map(str(path)) as source:
        fields = pa.ipc.open_file(source).schema.names
        options = pa.ipc.IpcReadOptions(included_fields=[fields.index(name) for name in columns])
        return pa.ipc.open_file(source, options=options).read_all()


def _write_table(path: Path, table: pa.Table) -> None:
    with disk_faults(path), pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=_COMPRESSED) as writer:
            writer.write_table(table)


def _file(shard: Path, what: str) -> Path:
    return shard.with_name(f"{shard.name}.{what}")


def _done(shard: Path, stage: str) -> dict[str, Any] | None:
    return read_json(_file(shard, f"{stage}.json"))


def _finish(shard: Path, stage: str, result: Result) -> Result:
    write_json(_file(shard, f"{stage}.json"), asdict(result))
    return result
