"""Stage ``select`` of a shard: cleaned documents -> held-out documents, chunks of the others.

Also how often each document of a shard is packed, by the weight of its source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crammed.columns import integers, numbers_in, one_array, strings_of
from crammed.data.preparing.cleaning.copies import MOST_DOCUMENTS, HeldoutRuns, Matches
from crammed.data.preparing.cleaning.spans import NO_CUTS, Cuts, without_spans
from crammed.data.shards import (
    Slices,
    digests,
    documents,
    finish_stage,
    load,
    read_table,
    save,
    shard_file,
    stage_result,
    texts_of,
    write_table,
)
from crammed.data.tokenization.chunks import ChunkedText, cut_into_chunks
from crammed.machine.engine import Engine


class Split(NamedTuple):
    """Where a document is split in two, as positions in its characters after cutting.

    Attributes:
        training_end: end of the part to train on.
        heldout_begin: beginning of the held-out part; what is between them is dropped.
    """

    training_end: int
    heldout_begin: int


@dataclass(frozen=True, slots=True)
class ShardSelection:
    """What happens to each of a shard's n cleaned documents.

    Attributes:
        repeats: [n] how often a document is packed; 0 leaves it out.
        heldout: [n] whether it is held out.
        cuts: what to cut out of the documents.
        splits: where to split a document, by its number, into parts to pack and to hold out.
    """

    repeats: NDArray[np.uint16]
    heldout: NDArray[np.bool_]
    cuts: Cuts = NO_CUTS
    splits: dict[int, Split] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectedShard:
    """A cleaned shard, its source, and what happens to its documents.

    Attributes:
        out: path of the shard's files from this stage on.
    """

    slices: Slices
    out: Path
    source: str
    selection: ShardSelection


@dataclass(frozen=True)
class SelectJob:
    """A shard to select from.

    Attributes:
        chunked: whether to cut the documents into chunks for the tokenizer.
        heldout_runs: the file of held-out runs to compare the documents with, if any.
        names: whether the name of the source is kept with held-out documents.
    """

    shard: SelectedShard
    chunked: bool
    heldout_runs: Path | None
    names: bool


def select_shard(job: SelectJob) -> int:
    """Write the held-out documents and, if `job.chunked`, the chunks of those to pack.

    Returns:
        The characters of the documents to pack, each counted once.
    """
    shard, out = job.shard, job.shard.out
    if (done := stage_result(out, "select")) is not None:
        return int(done["characters"])
    with shard_file(out, "heldout.jsonl").open("wb") as file:
        for text in filter(None, heldout_documents(shard)):
            file.write(heldout_line(text, shard.source if job.names else None))
    texts = _texts_to_pack(shard)
    characters = numbers_in(pc.utf8_length(texts))
    numbers = np.flatnonzero(shard.selection.repeats)
    save(out, "characters.npy", np.stack((numbers, characters)))
    files = ["heldout.jsonl", "characters.npy"]
    if job.chunked or job.heldout_runs is not None:
        chunks = cut_into_chunks(texts)
        del texts
        if job.heldout_runs is not None:
            matches = load_runs(job.heldout_runs).matches(chunks)
            files += _write_matches(out, matches, characters)
        if job.chunked:
            files += _write_chunks(out, chunks)
    total = int(characters.sum())
    finish_stage(out, "select", {"characters": total}, files)
    return total


def documents_to_pack(shard: SelectedShard) -> list[str]:
    """The texts to pack, after cutting, in order and once each."""
    return _texts(shard, shard.selection.repeats, lambda split: slice(split.training_end))


def _texts_to_pack(shard: SelectedShard) -> pa.LargeStringArray:
    """As `documents_to_pack`."""
    selection = shard.selection
    if selection.cuts or selection.splits:
        return strings_of(documents_to_pack(shard))
    return one_array(texts_of(shard.slices, np.flatnonzero(selection.repeats).tolist()))


def heldout_documents(shard: SelectedShard) -> list[str]:
    """The held-out texts, after cutting, in order."""
    return _texts(shard, shard.selection.heldout, lambda split: slice(split.heldout_begin, None))


def _texts(shard: SelectedShard, chosen: NDArray[Any], part: Callable[[Split], slice]) -> list[str]:
    """The texts of the documents that are chosen, after cutting; of split ones, a part."""
    cuts, splits = shard.selection.cuts, shard.selection.splits
    numbers = np.flatnonzero(chosen).tolist()
    whole = zip(numbers, documents(shard.slices, numbers), strict=True)
    texts = ((number, without_spans(text, cuts.get(number))) for number, text in whole)
    return [text[part(splits[n])] if n in splits else text for n, text in texts]


def heldout_line(text: str, source: str | None) -> bytes:
    """A held-out document as a line of JSON."""
    record = {"text": text} if source is None else {"text": text, "source": source}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _write_chunks(out: Path, text: ChunkedText) -> list[str]:
    columns = [text.distinct.cast(pa.large_string()), integers(text.counts)]
    table = pa.Table.from_arrays(columns, ["chunk", "count"])
    write_table(shard_file(out, "chunks.arrow"), table)
    save(out, "codes.npy", text.codes)
    save(out, "ends.npy", text.ends)
    return ["chunks.arrow", "codes.npy", "ends.npy"]


@lru_cache(maxsize=1)
def load_runs(file: Path) -> HeldoutRuns:
    """The runs of held-out documents in a file, which is mapped."""
    return HeldoutRuns(np.load(file, mmap_mode="r"))


def _write_matches(out: Path, matches: Matches, characters: NDArray[np.int64]) -> list[str]:
    runs, in_documents = matches.spread()
    kept = matches.without(runs[in_documents > MOST_DOCUMENTS])
    table = np.stack((kept.documents, kept.places, kept.runs))
    save(out, "matches.npy", table)
    save(out, "matched-runs.npy", np.stack((runs, in_documents)))
    save(out, "matched-documents.npy", np.stack((matches.words, characters)))
    return ["matches.npy", "matched-runs.npy", "matched-documents.npy"]


def read_matches(out: Path) -> tuple[Matches, NDArray[np.int64]]:
    """What documents share with held-out text, and their characters.

    Runs that occur in too many of the shard's own documents are left out.
    """
    table = load(out, "matches.npy")
    words, characters = load(out, "matched-documents.npy")
    return Matches(table[0], table[1], table[2], words), characters


def selected_documents(out: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of the documents to pack when the stage was done, and their characters."""
    numbers, characters = load(out, "characters.npy")
    return numbers, characters


def characters_left(shard: SelectedShard) -> int:
    """Characters of the documents to pack, some of which may have been dropped since."""
    numbers, characters = selected_documents(shard.out)
    return int(characters[shard.selection.repeats[numbers] > 0].sum())


def chunk_counts(shard: SelectedShard) -> pa.Table:
    """The distinct chunks of the documents to pack: columns ``chunk`` and ``count``."""
    out = shard.out
    table = read_table(shard_file(out, "chunks.arrow"), ["chunk", "count"])
    left = shard.selection.repeats[selected_documents(out)[0]] > 0
    if left.all():
        return table
    ends = load(out, "ends.npy")
    codes = load(out, "codes.npy")[np.repeat(left, np.diff(ends, prepend=0))]
    counts = np.bincount(codes, minlength=table.num_rows)
    counted = pa.Table.from_arrays([table["chunk"], integers(counts)], ["chunk", "count"])
    return counted.take(integers(np.flatnonzero(counts)))


def read_chunks(out: Path) -> ChunkedText:
    """The chunks of the documents to pack when the stage was done."""
    counts = read_table(shard_file(out, "chunks.arrow"), ["chunk", "count"])
    return ChunkedText(
        distinct=one_array(counts["chunk"]).cast(pa.string()),
        counts=numbers_in(one_array(counts["count"])),
        codes=load(out, "codes.npy"),
        ends=load(out, "ends.npy"),
    )


# ---- weights


def weighted(engine: Engine, shards: Sequence[tuple[Slices, float]]) -> NDArray[np.uint16]:
    """[n] how often to pack each document of all shards, given how often on average."""
    drawn = engine.map(_drawn, [each for each in shards if each[1] % 1.0])
    times = []
    for shard, weight in shards:
        once_more = next(drawn) if weight % 1.0 else np.zeros(sum(map(len, shard)), np.bool_)
        times.append((int(weight) + once_more).astype(np.uint16))
    return np.concatenate(times)


def _drawn(job: tuple[Slices, float]) -> NDArray[np.bool_]:
    """Which documents are packed once more for the fraction of a weight; the digest decides."""
    shard, weight = job
    drawn: NDArray[np.bool_] = digests(shard)[:, 1] / 2.0**64 < weight % 1.0
    return drawn
