"""A worker's job of reading: parts, or a piece of one, -> blocks of cleaned documents."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from crammed.config import CleanConfig
from crammed.data import shards
from crammed.data.preparing.read.cleaning_job import Cleaned, clean_block, cleaned
from crammed.data.preparing.read.part import FilePart, Part, SourceChanged
from crammed.data.shards import block_path, read_done, write_done
from crammed.errors import InputError
from crammed.files.folders import make_folder
from crammed.files.hashes import json_hash
from crammed.formats.blocks import LineBlock
from crammed.formats.lines import STOP, Faults
from crammed.formats.row_groups import RowGroups
from crammed.quantity import counted

_MARK = "read.json"
_APART = 1 << 20
"""From the number of a block to that of the next one of the same piece, if there are several. No
part has as many pieces, which are numbered from 0."""


@dataclass(frozen=True)
class Lost:
    """Damaged records of a part, which were left out."""

    part: str
    records: int
    first: str

    def __str__(self) -> str:
        return f"{counted(self.records, 'damaged record')} left out, the first: {self.first}"

    @classmethod
    def of(cls, part: str, blocks: Mapping[int, Cleaned]) -> list[Lost]:
        """What blocks of a part lack."""
        return [cls(part, block.lost, block.fault) for block in blocks.values() if block.lost]


@dataclass(frozen=True)
class Reading:
    """What reading gave.

    Attributes:
        blocks: the blocks by their numbers, in order; `block_path` names their files.
        skipped: parts that were left out: ``part``, ``why``, and as ``content`` what `identity_of`
            found, which the driver adds for large parts.
        lost: parts of which damaged records were left out: how many, and what is wrong with the
            first.
        ignored: number of files of unknown formats in archives, by suffix.
    """

    blocks: dict[int, Cleaned] = field(default_factory=dict)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)

    @property
    def characters(self) -> int:
        """Characters before cleaning."""
        return sum(block.read_characters for block in self.blocks.values())


@dataclass(frozen=True)
class ReadJob:
    """Parts to read, and where to write their blocks.

    Attributes:
        large: whether the only part is too large to be held in memory.
        skips: whether a damaged part is left out; otherwise it ends the preparation.
        most: begin no further document of a large part once this many characters have been read;
            None for no limit.
    """

    folder: Path
    parts: tuple[Part, ...]
    clean: CleanConfig
    large: bool
    skips: bool
    most: int | None = None


Piece = LineBlock | RowGroups | list[str]
"""Whole lines of a file, row groups of one, or documents."""


@dataclass(frozen=True)
class BlockJob:
    """A piece of a part, to be cleaned as block `number` and, if it is long, further ones.

    Attributes:
        state: the part's state when reading it began.
        content: its fingerprint then; needed for row groups, which the worker reads.
        skips: as for `ReadJob`.
    """

    folder: Path
    number: int
    part: Part
    state: dict[str, Any]
    content: dict[str, Any]
    piece: Piece
    clean: CleanConfig
    skips: bool


# ---- marks


def begin(folder: Path) -> None:
    """Make the folder for what is read; until it is marked, it may hold blocks of other content."""
    make_folder(folder)
    (folder / _MARK).unlink(missing_ok=True)


def write_mark(
    folder: Path,
    states: list[Any],
    contents: list[Any],
    blocks: int,
    reading: Reading,
    *,
    whole: bool,
) -> None:
    """Mark parts as read.

    Args:
        states, contents: the state and the fingerprint of each part; a part that was left out has
            no fingerprint (None).
        blocks: number of blocks, without further ones of the same piece.
        reading: whose blocks do not count, nor what they lack.
        whole: whether they were read to their end.
    """
    values = {
        "blocks": blocks,
        "whole": whole,
        "skipped": reading.skipped,
        "lost": [asdict(each) for each in reading.lost],
        "ignored": reading.ignored,
        "states": states,
        "contents": contents,
    }
    write_done(folder / _MARK, values)


def fingerprints(folder: Path) -> list[dict[str, Any]]:
    """The fingerprints of the parts that were read into this folder."""
    mark = read_done(folder / _MARK)
    return [each for each in mark["contents"] if each is not None] if mark else []


def identity_of(part: Part) -> dict[str, Any]:
    """The fingerprint of a part, or its name and size if it cannot be read."""
    with suppress(InputError):
        return part.fingerprint()
    found = {"name": part.name, "bytes": None}
    with suppress(InputError):
        found["bytes"] = part.state().get("bytes")
    return found


def has_mark(folder: Path) -> bool:
    """Whether parts have been read into this folder, although perhaps not these."""
    return (folder / _MARK).exists()


def known(job: ReadJob) -> Reading | None:
    """What an earlier call read; None if it must be read, since it or the result has changed."""
    mark = read_done(job.folder / _MARK)
    if mark is None or len(mark["states"]) != len(job.parts):
        return None
    least = 0 if mark["whole"] else job.most
    if least is None:
        return None
    try:
        for part, state, content in zip(job.parts, mark["states"], mark["contents"], strict=True):
            if state != part.state() and (content is None or content != part.fingerprint()):
                return None
    except InputError:
        return None
    blocks: dict[int, Cleaned] = {}
    for number in range(mark["blocks"]):
        if (made := _made(job.folder, number)) is None:
            return None
        blocks |= made
    lost = Lost.of(job.parts[0].name, blocks) + [Lost(**each) for each in mark["lost"]]
    if (mark["skipped"] or lost) and not job.skips:
        return None
    reading = Reading(blocks, mark["skipped"], lost, Counter(mark["ignored"]))
    return reading if reading.characters >= least else None


def _made(folder: Path, number: int, origin: str | None = None) -> dict[int, Cleaned] | None:
    """The blocks of a piece, the first of which has this number; None as for `cleaned`."""
    blocks: dict[int, Cleaned] = {}
    more = True
    while more:
        if (block := cleaned(block_path(folder, number), origin)) is None:
            return None
        blocks[number] = block
        number, more = number + _APART, block.more
    return blocks


# ---- reading


Job = ReadJob | BlockJob | Reading
"""The last is a result that is known already, and takes its turn among the others."""


def read(job: Job) -> Reading:
    """Read and clean; what the job writes depends on nothing but its parts.

    A part that is damaged is left out and reported.

    Raises:
        SourceChanged: a part changed while it was read.
    """
    if isinstance(job, Reading):
        return job
    return _read_parts(job) if isinstance(job, ReadJob) else _read_piece(job)


def _read_parts(job: ReadJob) -> Reading:
    begin(job.folder)
    reading = Reading()
    states: list[Any] = []
    contents: list[Any] = []
    texts = _documents(job, states, contents, reading)
    try:
        for number, some in enumerate(cut_by_characters(texts, piece_size())):
            reading.blocks[number] = clean_block(block_path(job.folder, number), some, job.clean)
    except _Damaged:
        return Reading(skipped=reading.skipped)
    whole = job.most is None or reading.characters < job.most
    write_mark(job.folder, states, contents, len(reading.blocks), reading, whole=whole)
    return reading


class _Damaged(Exception):
    """Nothing that the job has read is of use."""


def _documents(
    job: ReadJob, states: list[Any], contents: list[Any], reading: Reading
) -> Iterator[str]:
    """The documents of all parts; of several, those of one that turns out damaged are left out."""
    for part in job.parts:
        state: Any = None
        content: Any = None
        texts: list[str] = []
        faults = Faults(job.skips)
        try:
            state = part.state()
            held = part.loaded() if isinstance(part, FilePart) else part
            content = held.fingerprint()
            if job.large:
                yield from _up_to(job.most, held.documents(faults))
            else:
                texts = list(held.documents(faults))
            check_unchanged(part, state, content)
        except SourceChanged:
            raise
        except InputError as error:
            if content is not None:
                check_unchanged(part, state, content)
            identity = content or identity_of(part)
            reading.skipped.append({"part": part.name, "why": str(error), "content": identity})
            if job.large or not job.skips:
                raise _Damaged from error
            content, texts, faults = None, [], Faults()
        if faults.records:
            reading.lost.append(Lost(part.name, faults.records, faults.first))
        reading.ignored.update(faults.ignored)
        states.append(state)
        contents.append(content)
        yield from texts


def _up_to(most: int | None, documents: Iterable[str]) -> Iterator[str]:
    """The documents, none of which begins once `most` characters have been read."""
    characters = 0
    for text in documents:
        yield text
        characters += len(text)
        if most is not None and characters >= most:
            return


def check_unchanged(part: Part, state: dict[str, Any], content: dict[str, Any]) -> None:
    """Check that a part still has the content with which reading it began.

    Raises:
        SourceChanged: it has not, which may also have caused a fault found in reading.
    """
    if part.state() != state and part.fingerprint() != content:
        raise changed(part)


def changed(part: Part) -> SourceChanged:
    """The error about a part that changed while it was read."""
    return SourceChanged(
        f"{part.name} changed while it was read: wait until nothing writes to it, and repeat the "
        "command"
    )


def _read_piece(job: BlockJob) -> Reading:
    origin = _origin(job.piece, job.content)
    blocks = _made(job.folder, job.number, origin)
    if blocks is None or (Lost.of(job.part.name, blocks) and not job.skips):
        blocks, number, faults = {}, job.number, Faults(job.skips)
        try:
            for texts, more in _texts_of_blocks(job, faults):
                path, own = block_path(job.folder, number), STOP if more else faults
                blocks[number] = clean_block(path, texts, job.clean, origin, own, more)
                number += _APART
        except _Damaged as error:
            return Reading(skipped=[{"part": job.part.name, "why": str(error)}])
    return Reading(blocks, lost=Lost.of(job.part.name, blocks))


def _texts_of_blocks(job: BlockJob, faults: Faults) -> Iterator[tuple[list[str], bool]]:
    """The documents of each block of a piece, and whether another block follows.

    Row groups may be of any size; other pieces make one block.
    """
    if isinstance(job.piece, list):
        yield job.piece, False
        return
    assert isinstance(job.part, FilePart)
    try:
        texts = job.part.documents_of(job.piece, faults)
        if isinstance(job.piece, LineBlock):
            yield list(texts), False
            return
        ahead: list[str] = []
        more = True
        while more:
            begun = chain(ahead, texts)
            some = next(cut_by_characters(begun, piece_size()), [])
            ahead = list(islice(texts, 1))
            more = bool(ahead)
            check_unchanged(job.part, job.state, job.content)
            yield some, more
    except InputError as error:
        if job.part.state() != job.state:
            raise changed(job.part) from error
        raise _Damaged(str(error)) from error


def _origin(piece: Piece, content: dict[str, Any]) -> str:
    """A hash of a piece, so that a later call knows a block that was made from it."""
    if isinstance(piece, RowGroups):
        return json_hash([content, piece.start, piece.end])
    hashed = hashlib.blake2b(digest_size=shards.DIGEST_BYTES)
    if isinstance(piece, LineBlock):
        hashed.update(piece.data)
    else:
        for text in piece:
            hashed.update(text.encode("utf-8", "surrogatepass") + b"\xff")
    return hashed.hexdigest()


def piece_size() -> int:
    """Bytes or characters for a worker to read at a time, and so about the size of a block."""
    return shards.SHARD_CHARACTERS // 2


def cut_by_characters(documents: Iterable[str], most: int) -> Iterator[list[str]]:
    """Lists of documents, each with `most` characters or little more."""
    gathered: list[str] = []
    waiting = 0
    for text in documents:
        gathered.append(text)
        waiting += len(text)
        if waiting >= most:
            yield gathered
            gathered, waiting = [], 0
    if gathered:
        yield gathered
