"""The files that the stages of a preparation write, and how a later call finds them again.

Cleaned text lies in blocks, each written by one worker. Shards of about 16 million characters are
ranges of blocks: where they are cut depends on the text alone, and not on how it was read. The
files of a block or shard begin with its NAME:

clean   documents -> NAME.documents.arrow (text), NAME.digests.npy, NAME.lengths.npy, NAME.raw.npy,
        NAME.samples.json, NAME.near.npy
lines   documents -> NAME.lines-30.npy, NAME.lines-30-places.npy (`units`; also of paragraphs)
select  documents to keep -> NAME.heldout.jsonl, NAME.chunks.arrow, NAME.codes.npy, NAME.ends.npy,
        NAME.characters.npy; what they share with held-out text -> NAME.match*.npy
pack    chunks, or texts -> rows-NNNNN.bin, NAME.tail.npy, NAME.counts.npy

The stages are in `cleaning_job`, `units`, `selection_job` and `packing_job`. Each writes
NAME.STAGE.json last: its result, and the hashes of the files that it wrote. A stage is done if
these files still have these hashes, so nothing need be forced onto the disk: what a power cut took
is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crammed.columns import integers, strings
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.hashes import json_hash, sha256
from crammed.files.regular import open_new
from crammed.files.writing import read_json, save_array

SHARD_CHARACTERS = 16_000_000
DIGEST_BYTES = 16
_BATCH_BYTES = 1 << 20
"""Text that is compressed together, and so the least that is read to get at one document."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
_ENDS = b"ends"


def shard_file(shard: Path, name: str) -> Path:
    return shard.with_name(f"{shard.name}.{name}")


def block_path(folder: Path, number: int) -> Path:
    """The path of a block in the folder of what is read together."""
    return folder / f"{number:05d}"


# ---- stages


def stage_result(shard: Path, stage: str) -> dict[str, Any] | None:
    """The fields of a stage's result; None if it is not done or a file that it wrote is damaged."""
    done = read_done(shard_file(shard, f"{stage}.json"))
    if done is None or "files" not in done:
        return None
    files = done.pop("files")
    return done if all(_is_whole(shard.parent / name, files[name]) for name in files) else None


def _is_whole(file: Path, expected: str) -> bool:
    try:
        return sha256(file) == expected
    except (OSError, InputError):
        return False


def read_done(file: Path) -> dict[str, Any] | None:
    """What `write_done` wrote; None if there is nothing, or it is damaged and must be redone."""
    try:
        values = read_json(file)
        return values if values is None or values.pop("hash") == json_hash(values) else None
    except (ValueError, KeyError, InputError):
        return None


def write_done(file: Path, values: Mapping[str, Any]) -> None:
    """Mark a step as finished, and keep its result."""
    aside = file.with_name(f".{file.name}.tmp")
    text = json.dumps({**values, "hash": json_hash(values)}, ensure_ascii=False)
    with disk_faults(file):
        with open_new(aside) as opened:
            opened.write(text.encode())
        aside.replace(file)


def finish_stage(shard: Path, stage: str, result: Mapping[str, Any], files: Iterable[str]) -> None:
    """Mark a stage as done.

    Args:
        files: names of the shard's files that the stage has written, without the shard's own.
    """
    paths = [shard_file(shard, name) for name in files]
    hashes = {path.name: sha256(path) for path in paths}
    write_done(shard_file(shard, f"{stage}.json"), {**result, "files": hashes})


# ---- cleaned documents


@dataclass(frozen=True, slots=True)
class Slice:
    """The documents numbered start to end - 1 of a block, given by its folder and its number."""

    folder: Path
    number: int
    start: int
    end: int

    @property
    def block(self) -> Path:
        return block_path(self.folder, self.number)

    def __len__(self) -> int:
        return self.end - self.start


Slices = tuple[Slice, ...]
"""The documents of a shard, in order."""

DOCUMENT_FILES = ("documents.arrow", "digests.npy", "lengths.npy")


def write_documents(
    block: Path, texts: Sequence[bytes], lengths: Sequence[int]
) -> NDArray[np.uint64]:
    """Write a block's cleaned documents; returns their digests, [n, 2].

    Args:
        texts: in UTF-8.
        lengths: their characters.
    """
    _write_texts(shard_file(block, "documents.arrow"), strings(texts))
    digests = _as_integers(map(_digest, texts))
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    save(block, "digests.npy", np.column_stack((digests[order], order.astype(np.uint64))))
    save(block, "lengths.npy", np.array(lengths, np.int32))
    return digests


def _write_texts(file: Path, texts: pa.LargeStringArray) -> None:
    """Write texts in batches; the schema says how many there are up to the end of each batch."""
    bytes_before = np.frombuffer(texts.buffers()[1] or bytes(8), np.int64)[: len(texts) + 1]
    targets = np.arange(_BATCH_BYTES, bytes_before[-1], _BATCH_BYTES)
    cuts = np.searchsorted(bytes_before, bytes_before[0] + targets)
    ends = np.unique([*cuts, len(texts)])
    schema = pa.schema([("text", pa.large_string())], {_ENDS: json.dumps(ends.tolist())})
    with disk_faults(file), pa.OSFile(str(file), "wb") as sink:
        with pa.ipc.new_file(sink, schema, options=_COMPRESSED) as writer:
            for start, end in zip([0, *ends], ends, strict=False):
                batch = texts.slice(start, end - start)
                writer.write_batch(pa.record_batch([batch], schema=schema))


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def texts_of(slices: Slices, numbers: Sequence[int] | None = None) -> pa.ChunkedArray:
    """The texts of a shard's cleaned documents: all, or those with these ascending numbers."""
    found: list[pa.Array] = []
    wanted = None if numbers is None else np.asarray(numbers, np.int64)
    first = 0
    for part in slices:
        own = np.arange(part.start, part.end)
        if wanted is not None:
            low, high = np.searchsorted(wanted, (first, first + len(part)))
            own = wanted[low:high] - first + part.start
        first += len(part)
        found += _texts_numbered(shard_file(part.block, "documents.arrow"), own)
    return pa.chunked_array(found, pa.large_string())


def _texts_numbered(file: Path, numbers: NDArray[np.int64]) -> Iterator[pa.Array]:
    """The texts with these ascending numbers; only the batches that hold some are read."""
    if not len(numbers):
        return
    with own_file(file), pa.memory_map(str(file)) as source:
        reader = pa.ipc.open_file(source)
        ends = np.array(json.loads(reader.schema.metadata[_ENDS]), np.int64)
        batches = np.searchsorted(ends, numbers, side="right")
        for batch in np.unique(batches).tolist():
            texts = reader.get_batch(batch).column(0)
            own = numbers[batches == batch] - (ends[batch - 1] if batch else 0)
            is_all = len(own) == len(texts)
            yield texts if is_all else texts.take(integers(own))


def documents(slices: Slices, numbers: Sequence[int] | None = None) -> list[str]:
    """As `texts_of`, as strings."""
    texts: list[str] = texts_of(slices, numbers).to_pylist()
    return texts


def sorted_digests(block: Path) -> NDArray[np.uint64]:
    """The digest of every document as two integers, and its number, [n, 3], in ascending order."""
    return load(block, "digests.npy", mapped=True)


def digests(slices: Slices) -> NDArray[np.uint64]:
    """The digests of a shard's documents as two integers each, [n, 2], in the order of these."""
    found = [np.empty((0, 2), np.uint64)]
    for part in slices:
        every = sorted_digests(part.block)
        in_order = np.empty((len(every), 2), np.uint64)
        in_order[every[:, 2].astype(np.int64)] = every[:, :2]
        found.append(in_order[part.start : part.end])
    return np.concatenate(found)


def lengths_of(block: Path) -> NDArray[np.int32]:
    """The characters of every document, [n]."""
    return load(block, "lengths.npy")


def digests_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The digests of cleaned texts as two integers each, [n, 2]."""
    return _as_integers(_digest(text.encode()) for text in texts)


def _as_integers(digests: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype(np.uint64)


# ---- arrays and tables


def save(shard: Path, name: str, array: NDArray[Any]) -> None:
    save_array(shard_file(shard, name), array)


def load(shard: Path, name: str, *, mapped: bool = False) -> NDArray[Any]:
    file = shard_file(shard, name)
    with own_file(file):
        array: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None)
        return array


@contextmanager
def own_file(file: Path) -> Iterator[None]:
    """Report a damaged intermediate file in one line.

    Raises:
        InputError: the file cannot be made sense of; the next call makes it again.
    """
    try:
        yield
    except (ValueError, KeyError, IndexError, EOFError, FileNotFoundError, pa.ArrowInvalid) as e:
        raise InputError(
            f"the intermediate file {file} is damaged: repeat the command, which makes it again"
        ) from e


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """These columns of an Arrow file; the others are not read."""
    with own_file(path), pa.memory_map(str(path)) as source:
        names = pa.ipc.open_file(source).schema.names
        options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
        return pa.ipc.open_file(source, options=options).read_all()


def write_table(path: Path, table: pa.Table) -> None:
    """Write a compressed Arrow file."""
    with disk_faults(path), pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=_COMPRESSED) as writer:
            writer.write_table(table)
