"""Stage ``clean``: raw documents -> a block of cleaned documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crammed.config import CleanConfig
from crammed.data.preparing.cleaning.near import band_hashes
from crammed.data.preparing.cleaning.steps import clean, steps_of
from crammed.data.samples import SAMPLE_CHARACTERS, SAMPLES_OF_A_SHARD
from crammed.data.shards import (
    DIGEST_BYTES,
    DOCUMENT_FILES,
    finish_stage,
    load,
    own_file,
    save,
    shard_file,
    stage_result,
    write_documents,
)
from crammed.formats.lines import STOP, Faults

SAMPLES = "samples.json"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A block: what cleaning kept and dropped.

    Attributes:
        read: documents before cleaning.
        read_characters: their characters.
        documents: documents kept.
        characters: their characters.
        dropped: for each step, the numbers of documents and characters that it dropped.
        changed: for each step, the number of documents kept that it changed.
        content: hash of the documents kept.
        origin: hash of what the block was made from, if it could be something else.
        lost: damaged records of what it was made from, which are left out.
        fault: what is wrong with the first of them.
        more: whether another block follows that was made from the same.
    """

    read: int
    read_characters: int
    documents: int
    characters: int
    dropped: dict[str, list[int]]
    changed: dict[str, int]
    content: str
    origin: str
    lost: int = 0
    fault: str = ""
    more: bool = False


def cleaned(block: Path, origin: str | None = None) -> Cleaned | None:
    """The result of cleaning a block; None if it is not done, or was made from something else."""
    result = stage_result(block, "clean")
    if result is None or origin not in (None, result["origin"]):
        return None
    return Cleaned(**result)


def clean_block(
    block: Path,
    texts: Sequence[str],
    config: CleanConfig,
    origin: str = "",
    faults: Faults = STOP,
    more: bool = False,
) -> Cleaned:
    """Clean documents and write those that are kept.

    Args:
        faults: what was left out when they were read; `more` is as for `Cleaned`.
    """
    steps = steps_of(config)
    numbers = {step: number for number, (step, _) in enumerate(steps, 1)}
    dropped: dict[str, list[int]] = {step: [0, 0] for step in numbers}
    samples: dict[str, list[str]] = {n: [] for s in numbers for n in (s, changed_of(s))}
    dropped_by, changed_by = np.zeros((2, len(texts)), np.int32)
    kept: list[str] = []  # needed as strings only where near-duplicates are looked for
    encoded, lengths = list[bytes](), list[int]()
    for number, text in enumerate(texts):
        verdict = clean(text, steps)
        if (step := verdict.dropped_by) is None:
            encoded.append(_encoded(verdict.text))
            lengths.append(len(verdict.text))
            if config.near is not None:
                kept.append(encoded[-1].decode())
            for change in verdict.changes:
                changed_by[number] |= 1 << numbers[change.step]
                if len(own := samples[changed_of(change.step)]) < SAMPLES_OF_A_SHARD:
                    own.append(_beginning(change.excerpt()))
            continue
        dropped_by[number] = numbers[step]
        dropped[step][0] += 1
        dropped[step][1] += len(text)
        if len(samples[step]) < SAMPLES_OF_A_SHARD:
            samples[step].append(_beginning(verdict.text))
    characters = np.fromiter(map(len, texts), np.int32, len(texts))
    save(block, "raw.npy", np.stack((characters, dropped_by, changed_by)))
    digests = write_documents(block, encoded, lengths)
    _samples_file(block).write_text(json.dumps(samples), "utf-8")
    files = ["raw.npy", SAMPLES, *DOCUMENT_FILES]
    if config.near is not None:
        save(block, "near.npy", band_hashes(kept, config.near).T)
        files.append("near.npy")
    result = Cleaned(
        read=len(texts),
        read_characters=int(characters.sum(dtype=np.int64)),
        documents=len(lengths),
        characters=sum(lengths),
        dropped=dropped,
        changed=_changed(changed_by, numbers),
        content=hashlib.blake2b(digests.data, digest_size=DIGEST_BYTES).hexdigest(),
        origin=origin,
        lost=faults.records,
        fault=faults.first,
        more=more,
    )
    finish_stage(block, "clean", asdict(result), files)
    return result


def changed_of(step: str) -> str:
    """The name among the samples of what a step changed."""
    return f"{step}, changed"


def samples_of(block: Path) -> dict[str, list[str]]:
    """For each step, the beginnings of some documents that it dropped; parts of some it changed.

    The latter are as they are after it.
    """
    with own_file(_samples_file(block)):
        samples: dict[str, list[str]] = json.loads(_samples_file(block).read_text("utf-8"))
        return samples


def _samples_file(block: Path) -> Path:
    return shard_file(block, SAMPLES)


def raw_documents(block: Path) -> NDArray[np.int32]:
    """Of each document before cleaning, its characters and what steps did to it, [3, n].

    Steps are numbered from 1 in the order of `Cleaned.dropped`. The second row is the number of the
    step that dropped the document, 0 if it was kept. In the third, a bit is set for each step that
    changed it.
    """
    return load(block, "raw.npy")


def beginning_of(block: Path, whole: Cleaned, read: int) -> Cleaned:
    """What cleaning kept and dropped of the first `read` documents of a block."""
    characters, dropped_by, changed_by = raw_documents(block)[:, :read]
    numbers = {step: number for number, step in enumerate(whole.dropped, 1)}
    by_step = {step: characters[dropped_by == number] for step, number in numbers.items()}
    kept = int((dropped_by == 0).sum())
    return replace(
        whole,
        read=read,
        read_characters=int(characters.sum(dtype=np.int64)),
        documents=kept,
        characters=int(load(block, "lengths.npy")[:kept].sum(dtype=np.int64)),
        dropped={step: [len(own), int(own.sum())] for step, own in by_step.items()},
        changed=_changed(changed_by, numbers),
    )


def minhash_bands(block: Path) -> NDArray[np.uint64]:
    """The MinHash bands of every cleaned document, [bands, n]; near-duplicates share some."""
    return load(block, "near.npy", mapped=True)


def _changed(changed_by: NDArray[np.int32], numbers: Mapping[str, int]) -> dict[str, int]:
    return {step: int((changed_by >> number & 1).sum()) for step, number in numbers.items()}


def _beginning(text: str) -> str:
    return _encoded(text[:SAMPLE_CHARACTERS]).decode()


def _encoded(text: str) -> bytes:
    """The text in UTF-8; "?" replaces what that cannot encode: halves of surrogate pairs."""
    return text.encode("utf-8", "replace")
