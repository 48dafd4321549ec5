"""Reads the documents of all sources into blocks of cleaned text: the first stage of preparing.

Workers read small files, many at a time. A large file that can be cut at its lines, or between its
row groups, is cut here, and workers read its pieces, so that they share even a single file. Blocks
lie in a folder whose name is a hash of what determines them, so nothing is read twice, however
often a preparation is killed or repeated.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.cleaning.entities import found_by
from crammed.data.preparing.cleaning.language import identified_by
from crammed.data.preparing.cleaning.steps import settings_of
from crammed.data.preparing.read import reading_job
from crammed.data.preparing.read.cleaned import CleanedText, ReadBlocks
from crammed.data.preparing.read.part import FilePart, Part, SourceChanged
from crammed.data.preparing.read.reading_job import (
    BlockJob,
    Job,
    Lost,
    Piece,
    Reading,
    ReadJob,
    begin,
    check_unchanged,
    cut_by_characters,
    piece_size,
    write_mark,
)
from crammed.data.preparing.read.room import check_room
from crammed.data.preparing.read.source import Source, ignored_files
from crammed.errors import InputError
from crammed.files.hashes import json_hash
from crammed.formats.hub import HubPart
from crammed.formats.lines import CutShort, Faults
from crammed.formats.row_groups import RowGroups
from crammed.formats.streams import Tap
from crammed.machine.engine import Engine
from crammed.quantity import progress_rate
from crammed.terminal.progress import Progress

SCHEMA = 6
"""Version of the blocks; each version has folders of its own."""
_LATER_STEPS = ("exact", "repeated", "substring", "max_tokens_per_character")
"""Cleaning settings that do not affect the blocks."""
_MOST_SHOWN = 10
"""Files that were skipped, or whose damaged records are told of, each in a line."""
_FILE_COST = 2_000
"""Bytes of text that are read in the time that it takes to open a file."""


def read_and_clean(
    sources: Sequence[Source],
    data: DataConfig,
    folder: Path,
    engine: Engine,
    progress: Progress,
    out: Path | None = None,
) -> CleanedText:
    """Read every part that `folder` does not hold yet, and clean its documents.

    Args:
        out: the corpus, if there is to be room for it on the disk.

    Raises:
        InputError: a part is damaged and `data.unreadable` is stop, or a part changed while it
            was read, or the disk has too little room.
    """
    reader = _Reader(data, folder, progress)
    units = list(reader.units(sources))
    with progress.task("reading and cleaning", float(sum(unit.size for unit in units))) as task:
        reader.find_known(units, engine)
        if out is not None:
            unread = [(u.blocks, u.parts) for u in units if not u.known]
            for told in check_room(sources, unread, folder, out, data.clean):
                progress.line(f"disk  {told}")
        done, characters = sum(unit.size for unit in units if unit.known), 0
        began = progress.clock()
        rate = ""
        for unit, size, reading in reader.read(units, engine):
            done += size
            characters += reading.characters
            rate = progress_rate(characters, "characters", progress.clock() - began)
            task.update(done, f"{rate}, {unit.source.parts[unit.first].name}")
        task.update(done, rate)
    text = CleanedText.of(sources, [unit.blocks for unit in units])
    if text.ignored:
        every = sum((source.ignored for source in sources), text.ignored)
        progress.line(f"sources  {ignored_files(every)}")
    if len(text.skipped) > _MOST_SHOWN:
        progress.line(f"skipped  {len(text.skipped):,} files in all")
    for line in text.mostly_dropped():
        progress.line(f"cleaning  {line}")
    for lost in text.lost[:_MOST_SHOWN]:
        progress.line(f"damaged  {lost.part}: {lost}")
    if len(text.lost) > _MOST_SHOWN:
        records = sum(lost.records for lost in text.lost)
        progress.line(f"damaged  {records:,} records of {len(text.lost):,} files left out in all")
    return text


@dataclass
class _Unit:
    """Consecutive parts of a source that are read together, or a large part by itself.

    Attributes:
        parts: the range of their places among the source's parts.
        size: bytes, or what costs as much; for showing progress.
        known: whether an earlier call has read them.
        failed: whether the large part turned out to be damaged.
        mark: marks the large part as read, once all of its pieces are under way.
    """

    source: Source
    parts: range
    size: int
    large: bool
    alone: bool
    blocks: ReadBlocks
    known: bool = False
    failed: bool = False
    mark: Callable[[], None] | None = None

    @property
    def first(self) -> int:
        return self.parts[0]


class _Reader:
    def __init__(self, data: DataConfig, folder: Path, progress: Progress) -> None:
        settings = settings_of(data.clean)
        self._settings = {k: v for k, v in settings.items() if k not in _LATER_STEPS}
        if data.clean.languages is not None:
            self._settings["languages"] = [*data.clean.languages, identified_by()]
        if data.clean.entities is not None:
            self._settings["entities"] = [settings["entities"], found_by()]
        self._clean = data.clean
        self._skips = data.unreadable == "skip"
        self._folder = folder
        self._progress = progress
        self._skipped = 0
        """Files skipped so far."""
        self._read: Counter[int] = Counter()
        """Characters read so far of each source, by its place."""
        self._pending: deque[tuple[_Unit, int]] = deque()
        """The unit and the size of each job under way, and the known units among them, in order."""

    # ---- planning

    def units(self, sources: Sequence[Source]) -> Iterator[_Unit]:
        """All units, in order."""
        names: Counter[str] = Counter()
        for place, source in enumerate(sources):
            sizes = [p.text_bytes() if isinstance(p, FilePart) else None for p in source.parts]
            lone = sum(size is None or size >= shards.SHARD_CHARACTERS for size in sizes) == 1
            run = 0
            for parts, size, large in _groups(sizes):
                # The shards of a hub data set are one text, wherever they are cut.
                apart = large and not isinstance(source.parts[parts[0]], HubPart)
                run += apart
                name = self._name(source, parts, sizes)
                names[name] += 1  # the same again, such as copies of a file
                suffix = f"-{names[name]}" if names[name] > 1 else ""
                blocks = ReadBlocks(place, run, self._folder / "parts" / (name + suffix))
                yield _Unit(source, parts, size, large, lone, blocks)
                run += apart

    def _name(self, source: Source, parts: range, sizes: Sequence[int | None]) -> str:
        """Name of the folder for the blocks of some parts."""
        listed = [(source.parts[n].name, sizes[n]) for n in parts]
        settings, files = self._settings, (source.parts[n] for n in parts)
        libraries = {name for file in files if isinstance(file, FilePart) for name in file.read_by}
        if libraries:
            settings = {**settings, "libraries": sorted(libraries)}
        return json_hash([SCHEMA, listed, source.reading, settings, shards.SHARD_CHARACTERS])

    # ---- what is read already

    def find_known(self, units: Sequence[_Unit], engine: Engine) -> None:
        """Mark the units that an earlier call has read."""
        marked = [unit for unit in units if reading_job.has_mark(unit.blocks.folder)]
        for unit, reading in zip(
            marked, engine.map(reading_job.known, map(self._job, marked)), strict=True
        ):
            if reading is not None:
                unit.known = True
                unit.blocks.add(reading)

    # ---- reading

    def read(self, units: Sequence[_Unit], engine: Engine) -> Iterator[tuple[_Unit, int, Reading]]:
        """Read what is not known; yields each result with its unit and size, in order."""
        for reading in engine.map(reading_job.read, self._jobs(units)):
            unit, size = self._pending.popleft()
            full = self._is_full(unit)
            if not full:  # what lies beyond the limit does not matter, damaged or not
                self._take(unit, reading)
            elif reading.skipped:
                unit.failed = True  # so it is not marked as read
            self._finish(unit)
            self._count_known()
            if not full:
                yield unit, size, reading

    def _finish(self, unit: _Unit) -> None:
        """Mark a large part as read when no piece of it is under way any more."""
        is_read = all(other is not unit for other, _ in self._pending)
        if unit.mark is not None and is_read and not unit.failed:
            unit.mark()
            unit.mark = None

    def _take(self, unit: _Unit, reading: Reading) -> None:
        """Keep what a job has read; a large part that is damaged somewhere is left out."""
        if unit.failed:
            return
        for each in reading.skipped:
            if not self._skips:
                raise InputError(each["why"])
            if "content" not in each:  # only now: reading a large part again takes long
                each["content"] = reading_job.identity_of(unit.source.parts[unit.first])
            if self._skipped < _MOST_SHOWN:
                self._progress.line(f"skipped  {each['part']}: {each['why']}")
            self._skipped += 1
        if reading.skipped and unit.large:
            unit.failed = True
            self._read[unit.blocks.source] -= unit.blocks.reading.characters
            unit.blocks.reading.blocks.clear()
            unit.blocks.reading.lost.clear()
        unit.blocks.add(reading)
        self._read[unit.blocks.source] += reading.characters

    def _count_known(self) -> None:
        """Count the known units whose turn has come: no job before them is under way."""
        while self._pending and self._pending[0][0].known:
            unit, _ = self._pending.popleft()
            self._read[unit.blocks.source] += unit.blocks.reading.characters

    def _is_full(self, unit: _Unit, known: int = 0) -> bool:
        """Whether as much of the source is read as is wanted.

        Args:
            known: characters of the known units before this one, counted already or not.
        """
        most = unit.source.max_characters
        return most is not None and max(self._read[unit.blocks.source], known) >= most

    def _jobs(self, units: Sequence[_Unit]) -> Iterator[Job]:
        known: Counter[int] = Counter()
        for unit in units:
            if unit.known:
                known[unit.blocks.source] += unit.blocks.reading.characters
                self._pending.append((unit, 0))
                self._count_known()
            elif self._is_full(unit, known[unit.blocks.source]):
                continue
            elif unit.large:
                yield from self._large(unit, unit.source.parts[unit.first])
            else:
                self._pending.append((unit, unit.size))
                yield self._job(unit)

    def _job(self, unit: _Unit) -> ReadJob:
        parts = tuple(unit.source.parts[n] for n in unit.parts)
        most = unit.source.max_characters if unit.large else None
        return ReadJob(unit.blocks.folder, parts, self._clean, unit.large, self._skips, most)

    def _large(self, unit: _Unit, part: Part) -> Iterator[Job]:
        """The jobs for a large part; a fault found here takes its turn among their results."""
        taps: list[Tap] = []
        number = 0
        folder, faults = unit.blocks.folder, Faults(self._skips)
        try:
            state = part.state()
            pieces = self._pieces(unit, part, taps, faults)
            if pieces is None:
                self._pending.append((unit, unit.size))
                yield self._job(unit)
                return
            content: dict[str, Any] = {}
            begin(folder)
            read = 0
            whole = True
            for piece in _until_cut_short(pieces, faults):
                if self._is_full(unit) or unit.failed:
                    whole = False
                    break
                if not taps:  # which hash what is read of the file's own bytes
                    content = content or part.fingerprint()
                before, read = read, taps[0].bytes if taps else 0
                size = unit.size * (read - before) // max(1, state.get("bytes", 0)) if taps else 0
                if isinstance(piece, RowGroups):
                    size = round(unit.size * piece.share)
                self._pending.append((unit, size))
                clean, skips = self._clean, self._skips
                yield BlockJob(folder, number, part, state, content, piece, clean, skips)
                number += 1
            if taps and (whole_hash := taps[0].sha256) is not None:
                content = {"name": part.name, "bytes": state["bytes"], "sha256": whole_hash}
            elif not content:  # the limit was reached before the end
                content = part.fingerprint()
            check_unchanged(part, state, content)
            lost = [Lost(part.name, faults.records, faults.first)] if faults.records else []
            reading = Reading(lost=lost)
            unit.mark = partial(
                write_mark, folder, [state], [content], number, reading, whole=whole
            )
            if lost:
                self._pending.append((unit, 0))
                yield reading
            self._finish(unit)
        except SourceChanged:
            raise
        except InputError as error:
            self._pending.append((unit, 0))
            yield Reading(skipped=[{"part": part.name, "why": str(error)}])

    def _pieces(
        self, unit: _Unit, part: Part, taps: list[Tap], faults: Faults
    ) -> Iterable[Piece] | None:
        """The pieces of a large part; None if one worker is to read it as a whole."""
        if isinstance(part, FilePart):
            if (groups := part.row_groups(piece_size())) is not None:
                return groups
            pieces = part.blocks(piece_size(), taps)
            if pieces is not None or not unit.alone or part.is_binary:
                return pieces
        elif isinstance(part, HubPart) and part.shards > 1 and unit.source.max_characters is None:
            return None  # with a limit, several workers would each read as much
        return cut_by_characters(part.documents(faults), piece_size())


def _until_cut_short(pieces: Iterable[Piece], faults: Faults) -> Iterator[Piece]:
    """The pieces before damage that nothing can be read after, if there are any."""
    found = False
    try:
        for piece in pieces:
            found = True
            yield piece
    except CutShort as error:
        if not found:
            raise
        faults.found(error)


def _groups(sizes: Sequence[int | None]) -> Iterator[tuple[range, int, bool]]:
    """Ranges of parts to read together, what they cost in bytes, and whether it is a large part."""
    first, cost = 0, 0
    for number, size in enumerate(sizes):
        large = size is None or size >= shards.SHARD_CHARACTERS
        if first < number and (large or cost >= piece_size()):
            yield range(first, number), cost, False
            first, cost = number, 0
        if large:
            yield range(number, number + 1), size or shards.SHARD_CHARACTERS, True
            first = number + 1
        else:
            cost += (size or 0) + _FILE_COST
    if first < len(sizes):
        yield range(first, len(sizes)), cost, False
