"""The files of a shard: about 16 MB of documents from one part, and what each stage makes of them.

Each stage is a worker's job on one shard, whose files begin with its NAME:

clean   documents -> NAME.documents.arrow (text, digest, characters), NAME.near.npy
select  documents to keep -> NAME.heldout.jsonl, NAME.chunks.arrow, NAME.codes.npy, NAME.ends.npy,
        NAME.characters.npy; what they share with held-out text -> NAME.match*.npy
pack    chunks, or texts -> rows-NNNNN.bin, NAME.tail.npy

The stages are in `cleaning_job`, `selection_job` and `packing_job`. Each writes
NAME.STAGE.json last: if it exists, the stage is done, and its result is read from there. Just
before, it writes the hashes of all other files to NAME.hashes.json, so that damaged files are made
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import sync_all
from crammed.files.hashes import json_hash, sha256
from crammed.files.writing import read_json, write_json

SHARD_CHARACTERS = 16_000_000
DIGEST_BYTES = 16
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")

Result = TypeVar("Result")


def shard_file(shard: Path, name: str) -> Path:
    """The path of one of a shard's files."""
    return shard.with_name(f"{shard.name}.{name}")


# ---- stages


def stage_result(shard: Path, stage: str) -> dict[str, Any] | None:
    """The fields of a stage's result; None if the stage is not done or its files are damaged."""
    done = read_done(shard_file(shard, f"{stage}.json"))
    return done if done is not None and _is_whole(shard) else None


def _is_whole(shard: Path) -> bool:
    """Whether the shard's files match their hashes; older versions wrote none.

    An unfinished stage may have added files without hashes; these do not matter.
    """
    try:
        listed = read_json(shard_file(shard, "hashes.json")) or {}
        return listed.items() <= _hashes(shard).items()
    except (OSError, InputError, TypeError):
        return False


def _hashes(shard: Path) -> dict[str, str]:
    files = shard.parent.glob(f"{shard.name}.*")
    return {file.name: sha256(file) for file in sorted(files) if file.suffix != ".json"}


def read_done(file: Path) -> dict[str, Any] | None:
    """What `write_done` wrote; None if there is nothing, or it is damaged and must be redone."""
    try:
        values = read_json(file)
        if values is not None and values.pop("hash", None) not in (None, json_hash(values)):
            return None  # files of older versions have no hash
        return values
    except (ValueError, InputError):
        return None


def write_done(file: Path, values: Mapping[str, Any]) -> None:
    """Mark a step as finished, and keep its result."""
    write_json(file, {**values, "hash": json_hash(values)})


def finish_stage(shard: Path, stage: str, result: Result, *more: Path) -> Result:
    """Mark a stage as done, and return its result, which is a dataclass.

    Args:
        more: files that the stage has written elsewhere. They and the shard's own reach the disk
            before the mark does, so that after a power cut nothing lost is marked as done.
    """
    sync_all((*shard.parent.glob(f"{shard.name}.*"), *more))
    write_json(shard_file(shard, "hashes.json"), _hashes(shard))
    values: Any = result
    write_done(shard_file(shard, f"{stage}.json"), asdict(values))
    return result


# ---- cleaned documents


def write_documents(shard: Path, texts: Sequence[str]) -> None:
    """Write cleaned documents with their digests and lengths in characters."""
    table = pa.table(
        {
            "text": pa.array(texts, pa.large_string()),
            "digest": pa.array(map(_digest, texts), pa.binary(DIGEST_BYTES)),
            "characters": pa.array([len(text) for text in texts], pa.int64()),
        }
    )
    write_table(shard_file(shard, "documents.arrow"), table)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def documents(shard: Path, numbers: Sequence[int] | None = None) -> list[str]:
    """The texts of the cleaned documents: all, or those with these numbers."""
    if numbers is not None and not len(numbers):
        return []
    column = read_table(shard_file(shard, "documents.arrow"), ["text"])["text"]
    if numbers is not None:
        column = column.take(pa.array(numbers, pa.int64()))
    texts: list[str] = column.to_pylist()
    return texts


def digests(shard: Path) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The digest of every cleaned document as two integers, [n, 2], and its length, [n]."""
    table = read_table(shard_file(shard, "documents.arrow"), ["digest", "characters"])
    joined = b"".join(
        chunk.buffers()[1].to_pybytes()[: len(chunk) * DIGEST_BYTES]
        for chunk in table["digest"].chunks
    )
    return _as_integers(joined), table["characters"].to_numpy()


def digests_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The digests of cleaned texts in the form that `digests` returns, [n, 2]."""
    return _as_integers(b"".join(map(_digest, texts)))


def _as_integers(joined: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(joined, ">u8").reshape(-1, 2).astype(np.uint64)


def minhash_bands(shard: Path) -> NDArray[np.uint64]:
    """The MinHash bands of every cleaned document, [n, bands]; near-duplicates share some."""
    bands: NDArray[np.uint64] = np.load(shard_file(shard, "near.npy"), mmap_mode="r")
    return bands


# ---- tables


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """These columns of an Arrow file; the others are not read."""
    with pa.memory_map(str(path)) as source:
        names = pa.ipc.open_file(source).schema.names
        options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
        return pa.ipc.open_file(source, options=options).read_all()


def write_table(path: Path, table: pa.Table) -> None:
    """Write a compressed Arrow file."""
    with disk_faults(path), pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=_COMPRESSED) as writer:
            writer.write_table(table)
