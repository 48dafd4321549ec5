"""Stage ``pack`` of a shard: chunks or texts -> rows; and the rows that span several shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data.corpus import token_dtype, write_rows
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shard_selection import ShardSelection, documents_to_pack, lengths, read_chunks
from crammed.data.shards import documents, finish_stage, shard_file, stage_result
from crammed.data.statistics import Statistics
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.files import save_array, sha256, write_array


@dataclass(frozen=True)
class PackJob:
    """A shard to pack.

    Attributes:
        out: path of the shard's files from the stage ``select`` on.
        rows: file of rows to write.
        chunked: whether the shard's documents are cut into chunks.
        tokenizer: a tokenizer.json.
        cls: whether documents begin with [CLS].
    """

    shard: Path
    out: Path
    rows: Path
    source: str
    selection: ShardSelection
    chunked: bool
    tokenizer: Path
    row_length: int
    cls: bool
    most_tokens_per_character: float | None


@dataclass(frozen=True)
class Packed:
    """The result of packing a shard.

    Attributes:
        unique: documents packed, each counted once.
        characters: their characters.
        dense, dense_characters: documents dropped for too many tokens per character.
        tokens: all tokens to pack, including [SEP] and repeats.
        rows: whole rows written.
        sha256: hash of the file of rows; None if there are no rows.
        statistics: `Statistics` of the documents, as JSON values.
    """

    unique: int
    characters: int
    dense: int
    dense_characters: int
    samples: list[Sample]
    tokens: int
    rows: int
    sha256: str | None
    statistics: dict[str, Any]


def pack_shard(job: PackJob) -> Packed:
    """Write a shard's documents as rows; the tokens after the last whole row become its tail."""
    if (done := stage_result(job.out, "pack")) is not None:
        return Packed(**done)
    tokenizer, special = _load_tokenizer(job.tokenizer)
    if job.chunked:
        text, characters = read_chunks(job.out)
        ids, ends = tokenizer.encode_chunks(text)
    else:
        texts = documents_to_pack(job.shard, job.selection)
        characters = lengths(texts)
        ids, ends = tokenizer.encode_texts(texts)
    tokens = np.diff(ends, prepend=0)
    most = job.most_tokens_per_character
    kept = np.ones(len(ends), bool) if most is None else tokens < most * characters
    dense = np.flatnonzero(~kept)
    repeats = job.selection.repeats[job.selection.repeats > 0]

    order = np.repeat(np.flatnonzero(kept), repeats[kept])
    stream, starts = _join(ids, ends, order, special, job.cls)
    statistics = Statistics.of(
        job.source, characters[order], tokens[order], stream, tokenizer.vocab_size
    )
    tail = write_rows(job.rows, stream, job.row_length, token_dtype(tokenizer.vocab_size))
    save_array(shard_file(job.out, "tail.npy"), tail)
    save_array(shard_file(job.out, "starts.npy"), starts)
    rows = (len(stream) - len(tail)) // job.row_length
    result = Packed(
        unique=int(kept.sum()),
        characters=int(characters[kept].sum()),
        dense=len(dense),
        dense_characters=int(characters[dense].sum()),
        samples=_dense_samples(job, dense),
        tokens=len(stream),
        rows=rows,
        sha256=sha256(job.rows) if rows else None,
        statistics=statistics.to_json(),
    )
    return finish_stage(job.out, "pack", result, *([job.rows] if rows else []))


def _join(
    ids: NDArray[np.uint32],
    ends: NDArray[np.int64],
    order: NDArray[np.int64],
    special: Specials,
    cls: bool,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The tokens of the documents with these numbers, joined, and where each document begins."""
    before = np.array([special.cls] if cls else [], np.uint32)
    after = np.array([special.sep], np.uint32)
    begins = np.concatenate([[0], ends])
    pieces = [np.empty(0, np.uint32)]
    for number in order.tolist():
        pieces += (before, ids[begins[number] : begins[number + 1]], after)
    tokens = np.diff(ends, prepend=0)[order] + len(before) + 1
    return np.concatenate(pieces), np.cumsum(tokens) - tokens


def _dense_samples(job: PackJob, dense: NDArray[np.int64]) -> list[Sample]:
    numbers = np.flatnonzero(job.selection.repeats)[dense[:SAMPLES_OF_A_SHARD]].tolist()
    return [
        sample("tokens per character", job.source, text) for text in documents(job.shard, numbers)
    ]


@lru_cache(maxsize=1)
def _load_tokenizer(file: Path) -> tuple[CorpusTokenizer, Specials]:
    tokenizer = Tokenizer.from_file(str(file))
    return CorpusTokenizer(tokenizer), Specials.of(tokenizer)


def pack_tails(
    corpus: Path, outs: Sequence[Path], packed: Sequence[Packed], row_length: int, vocab_size: int
) -> int:
    """Write rows of the shards' tails, and documents.bin; return the number of tokens left out.

    Where a tail begins within a document, that counts as the beginning of a document too, since
    what precedes it in the rows is another document.

    Raises:
        InputError: all shards together do not fill one row.
    """
    starts: list[NDArray[np.int64]] = []
    tails: list[NDArray[np.uint32]] = []
    tail_starts: list[NDArray[np.int64]] = []
    place = tail_place = 0
    for out, each in zip(outs, packed, strict=True):
        tail, begins = np.load(shard_file(out, "tail.npy")), np.load(shard_file(out, "starts.npy"))
        whole = each.rows * row_length
        starts.append(place + begins[begins < whole])
        place += whole
        if len(tail):
            later = begins[begins > whole]
            tail_starts.append(tail_place + np.concatenate([[0], later - whole]))
            tails.append(tail)
            tail_place += len(tail)
    if place + tail_place < row_length:
        raise InputError(f"too little text: {tail_place} tokens do not fill a row of {row_length}")
    left_out = tail_place % row_length
    if tails:
        rows = corpus / f"rows-{len(outs):05d}.bin"
        write_rows(rows, np.concatenate(tails), row_length, token_dtype(vocab_size))
    starts += [place + begins[begins < tail_place - left_out] for begins in tail_starts]
    write_array(corpus / "documents.bin", np.concatenate(starts).astype("<u8"))
    return left_out
