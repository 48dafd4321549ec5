"""Stage ``pack``: chunks or texts -> files of rows; then rows made of the tails of all files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crammed.data import shards
from crammed.data.corpus import token_dtype, write_rows
from crammed.data.preparing.select.selection_job import (
    SelectedShard,
    documents_to_pack,
    read_chunks,
    selected_documents,
)
from crammed.data.samples import SAMPLES_OF_A_SHARD, Sample, sample
from crammed.data.shards import documents, finish_stage, load, save, stage_result
from crammed.data.statistics import Statistics
from crammed.data.tokenization.encoding import CorpusTokenizer
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.quantity import counted

_MUCH = 0.1
"""Share of the characters that the user is told of where tokens per character drop more."""


@dataclass(frozen=True)
class PackJob:
    """Shards to pack into one file of rows.

    Attributes:
        parts: the stage's files go with the first of them.
        rows: the file of rows to write.
        chunked: whether the documents are cut into chunks.
        tokenizer: a tokenizer.json.
        cls, sep: whether documents begin with [CLS] and end with [SEP].
    """

    parts: tuple[SelectedShard, ...]
    rows: Path
    chunked: bool
    tokenizer: Path
    row_length: int
    cls: bool
    sep: bool
    most_tokens_per_character: float | None

    @property
    def out(self) -> Path:
        return self.parts[0].out


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of packing some shards.

    Attributes:
        unique: documents packed, each counted once.
        characters: their characters.
        dense, dense_characters: documents dropped for too many tokens per character.
        tokens: all tokens to pack, including special tokens and repeats.
        sha256: hash of the file of rows; None if no row is whole.
        statistics: `Statistics` of the documents, as JSON values; `statistics_of` reads the rest.
    """

    unique: int
    characters: int
    dense: int
    dense_characters: int
    samples: list[Sample]
    tokens: int
    sha256: str | None
    statistics: dict[str, Any]


def pack_shards(job: PackJob) -> Packed:
    """Write documents as rows; the tokens after the last whole row become the tail."""
    if (done := stage_result(job.out, "pack")) is not None:
        packed = Packed(**done)
        if packed.sha256 is None or (job.rows.exists() and sha256(job.rows) == packed.sha256):
            return packed  # a power cut may have taken rows that were not on the disk yet
    tokenizer, special = _load_tokenizer(job.tokenizer)
    encoded = [_encode(part, job.chunked, tokenizer) for part in job.parts]
    ids = np.concatenate([each.ids for each in encoded])
    tokens = np.concatenate([each.tokens for each in encoded])
    characters = np.concatenate([each.characters for each in encoded])
    part = np.repeat(np.arange(len(encoded)), [len(each.tokens) for each in encoded])
    repeats = np.concatenate(
        [p.selection.repeats[e.numbers] for p, e in zip(job.parts, encoded, strict=True)]
    )
    most = job.most_tokens_per_character
    is_dense = np.zeros(len(tokens), bool) if most is None else tokens >= most * characters
    dense = np.flatnonzero(is_dense & (repeats > 0))
    repeats = np.where(is_dense, 0, repeats)
    kept = repeats > 0

    order = spread_copies(tokens + job.sep + job.cls, repeats)
    stream = _join(ids, tokens, order, special, cls=job.cls, sep=job.sep)
    statistics = [
        Statistics.of(
            each.source,
            characters[own],
            tokens[own],
            stream if number == 0 else stream[:0],
            tokenizer.vocab_size,
        )
        for number, each in enumerate(job.parts)
        for own in (order[part[order] == number],)
    ]
    tail = write_rows(job.rows, stream, job.row_length, token_dtype(tokenizer.vocab_size))
    save(job.out, "tail.npy", tail)
    merged = Statistics.merge(statistics)
    save(job.out, "counts.npy", merged.token_counts)
    result = Packed(
        unique=int(kept.sum()),
        characters=int(characters[kept].sum()),
        dense=len(dense),
        dense_characters=int(characters[dense].sum()),
        samples=list(_dense_samples(job.parts, encoded, dense, part)),
        tokens=len(stream),
        sha256=sha256(job.rows) if len(tail) < len(stream) else None,
        statistics={k: v for k, v in merged.to_json().items() if k != "token_counts"},
    )
    finish_stage(job.out, "pack", asdict(result), ["tail.npy", "counts.npy"])
    return result


def much_dropped(packed: Sequence[Packed]) -> str | None:
    """A line on text that was dropped for too many tokens per character; None if it is little."""
    dropped = sum(each.dense_characters for each in packed)
    share = dropped / max(1, dropped + sum(each.characters for each in packed))
    if share <= _MUCH:
        return None
    return (
        f"data.clean.max_tokens_per_character dropped {100 * share:.1f} % of the characters: "
        "raise it, or set it to null, as for Chinese, Japanese and Korean (docs/languages.md)"
    )


def statistics_of(out: Path, packed: Packed) -> Statistics:
    """The statistics of what was packed."""
    counts = load(out, "counts.npy")
    return Statistics.from_json({**packed.statistics, "token_counts": counts})


@dataclass(frozen=True)
class _Encoded:
    """The documents of a shard: all their tokens, and of each its number and [D] counts."""

    ids: NDArray[np.uint32]
    numbers: NDArray[np.int64]
    tokens: NDArray[np.int64]
    characters: NDArray[np.int64]


def _encode(part: SelectedShard, chunked: bool, tokenizer: CorpusTokenizer) -> _Encoded:
    """Encode at least the documents to pack."""
    if chunked:
        numbers, characters = selected_documents(part.out)
        ids, ends = tokenizer.encode_chunks(read_chunks(part.out))
    else:
        numbers = np.flatnonzero(part.selection.repeats)
        texts = documents_to_pack(part)
        characters = np.fromiter(map(len, texts), np.int64, len(texts))
        ids, ends = tokenizer.encode_texts(texts)
    return _Encoded(ids, numbers, np.diff(ends, prepend=0), characters)


def packing_groups(characters: Sequence[int], repeated: bool) -> list[list[int]]:
    """Groups of shards to pack together, by number.

    Each shard is packed on its own unless some documents are packed more than once. Copies are
    spread over what is packed together, so small shards are then joined with their neighbours until
    they reach the size of a full shard.

    Args:
        characters: number of characters to pack from each shard.
        repeated: whether any source has a weight above 1.
    """
    if not repeated:
        return [[number] for number in range(len(characters))]
    groups: list[list[int]] = [[]]
    gathered = 0
    for number, size in enumerate(characters):
        groups[-1].append(number)
        gathered += size
        if gathered >= shards.SHARD_CHARACTERS:
            groups.append([])
            gathered = 0
    last = groups.pop() if len(groups) > 1 else []
    groups[-1] += last  # packed alone, its copies might be too close together
    return groups


def spread_copies(lengths: NDArray[np.int64], repeats: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of the documents in the order in which to pack them.

    The copies of a document that is packed r times are an r-th of all tokens apart; the others keep
    their order. A row with two copies would give away what is masked in one of them.

    Args:
        lengths: [D] tokens of each document.
        repeats: [D] how often to pack each document.
    """
    times = repeats.astype(np.int64)
    once = np.where(times > 0, lengths, 0)
    total = int(once.sum())
    numbers = np.repeat(np.arange(len(times)), times)
    copy = np.arange(len(numbers)) - np.repeat(np.cumsum(times) - times, times)
    times, begins = times[numbers], (np.cumsum(once) - once)[numbers]
    places = (begins * times + total * copy) % (total * times) / times
    return numbers[np.argsort(places, kind="stable")]


def _join(
    ids: NDArray[np.uint32],
    tokens: NDArray[np.int64],
    order: NDArray[np.int64],
    special: Specials,
    *,
    cls: bool,
    sep: bool,
) -> NDArray[np.uint32]:
    """The tokens of documents joined in this order, each framed by its special tokens."""
    before = np.array([special.cls] if cls else [], np.uint32)
    after = np.array([special.sep] if sep else [], np.uint32)
    begins = np.concatenate([[0], np.cumsum(tokens)])
    pieces = [np.empty(0, np.uint32)]
    for number in order.tolist():
        pieces += (before, ids[begins[number] : begins[number + 1]], after)
    return np.concatenate(pieces)


def _dense_samples(
    parts: Sequence[SelectedShard],
    encoded: Sequence[_Encoded],
    dense: NDArray[np.int64],
    part: NDArray[np.int64],
) -> Iterator[Sample]:
    """Samples of the documents numbered `dense`; `part` holds each document's part."""
    for number, each in enumerate(parts):
        own = dense[part[dense] == number] - np.searchsorted(part, number)
        numbers = encoded[number].numbers[own[:SAMPLES_OF_A_SHARD]].tolist()
        for text in documents(each.slices, numbers):
            yield sample("tokens per character", each.source, text)


@lru_cache(maxsize=1)
def _load_tokenizer(file: Path) -> tuple[CorpusTokenizer, Specials]:
    tokenizer = Tokenizer.from_file(str(file))
    return CorpusTokenizer(tokenizer), Specials.of(tokenizer)


def pack_tails(
    corpus: Path, outs: Iterable[Path], packed: Sequence[Packed], row_length: int, vocab_size: int
) -> int:
    """Write rows made of the files' tails, and return the number of tokens left over.

    A tail may begin within a document. What precedes it then ends in [SEP], as every tail does.

    Raises:
        InputError: all shards together do not fill one row.
    """
    tails = np.concatenate([load(out, "tail.npy") for out in outs])
    if len(tails) < row_length and not any(each.sha256 for each in packed):
        why = f"too little text: {len(tails)} tokens do not fill a row of {row_length}"
        if dense := sum(each.dense for each in packed):
            why += (
                f"; data.clean.max_tokens_per_character dropped {counted(dense, 'document')}: "
                "raise it, or set it to null"
            )
        raise InputError(why)
    rows = corpus / f"rows-{len(packed):05d}.bin"
    return len(write_rows(rows, tails, row_length, token_dtype(vocab_size)))
