"""Reading sources into cleaned shards: the first stage of preparing a corpus.

The driver reads, workers clean. What a part (a file) gave is kept under a name made of everything
that decides it, so it is read once, however often a preparation is killed or repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.cleaning.steps import settings_of
from crammed.data.engine import Engine
from crammed.data.shards import Cleaned, CleanJob
from crammed.data.sources import Part, Source
from crammed.errors import InputError
from crammed.files import disk_faults, json_hash, read_json, write_json
from crammed.progress import Progress

SCHEMA = 1
"""Of the cleaned shards: another number is another folder."""


@dataclass
class Shard:
    """Where a shard's cleaned documents are, and what cleaning found."""

    path: Path
    source: Source
    part: str
    cleaned: Cleaned | None = None

    @property
    def counts(self) -> Cleaned:
        assert self.cleaned is not None
        return self.cleaned


@dataclass
class Text:
    """All cleaned shards in order, what the sources gave, and which parts were left out."""

    shards: list[Shard] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)


def read_and_clean(
    sources: Sequence[Source], data: DataConfig, folder: Path, engine: Engine, progress: Progress
) -> Text:
    """Read every part that `folder` does not hold yet, and clean its documents.

    Raises:
        InputError: a part is damaged and `data.unreadable` is stop, or no document is left.
    """
    reader = _Ingest(data, folder, progress)
    parts = sum(len(source.parts) for source in sources)
    with progress.task("reading and cleaning", parts) as task:
        began, characters = progress.clock(), 0
        for number, cleaned in enumerate(engine.map(shards.clean, reader.jobs(sources))):
            shard = reader.waiting[number]
            shard.cleaned = cleaned
            characters += cleaned.characters
            rate = characters / 1e6 / max(1e-9, progress.clock() - began)
            place = f"{shard.part}, {min(reader.parts_read + 1, parts)} of {parts}"
            task.update(
                reader.parts_read, f"{characters:,} characters, {rate:.1f} M a second, {place}"
            )
        if characters:
            task.update(parts, f"{characters:,} characters, {rate:.1f} M a second")
    text = reader.text
    if not any(shard.counts.documents for shard in text.shards):
        why = f": {text.skipped[0]['why']}" if text.skipped else ", no document is left"
        raise InputError(f"the data holds no text{why}")
    return text


class _Ingest:
    """Gives jobs for what is not cleaned yet, and keeps a list of all shards in order."""

    def __init__(self, data: DataConfig, folder: Path, progress: Progress) -> None:
        self.text = Text()
        self.waiting: list[Shard] = []
        self.parts_read = 0
        self._unreadable = data.unreadable
        later = ("exact", "substring", "max_tokens_per_character")
        self._settings = {k: v for k, v in settings_of(data.clean).items() if k not in later}
        self._clean = data.clean
        if data.clean.downstream is not None:  # workers may stand in another folder
            absolute = str(Path(data.clean.downstream).absolute())
            self._clean = data.clean.model_copy(update={"downstream": absolute})
        self._folder = folder
        self._progress = progress

    def jobs(self, sources: Sequence[Source]) -> Iterator[CleanJob]:
        for source in sources:
            record: dict[str, Any] = {"name": source.name, "weight": source.weight, "parts": []}
            self.text.sources.append(record)
            left = source.max_characters
            for part in source.parts:
                if left is not None and left <= 0:
                    break
                before = len(self.text.shards)
                try:
                    fingerprint = part.fingerprint()
                    folder = self._folder / "parts" / self._name(source, fingerprint, left)
                    read = yield from self._jobs_of(source, part, folder, left)
                except InputError as error:
                    if self._unreadable == "stop":
                        raise
                    self._progress.line(f"left out  {part.name}: {error}")
                    self.text.skipped.append({"part": part.name, "why": str(error)})
                    del self.text.shards[before:]
                    continue
                finally:
                    self.parts_read += 1
                record["parts"].append(fingerprint)
                if left is not None:
                    left -= read

    def _name(self, source: Source, fingerprint: dict[str, Any], most: int | None) -> str:
        size = shards.SHARD_CHARACTERS
        return json_hash([SCHEMA, fingerprint, source.reading, most, self._settings, size])

    def _jobs_of(
        self, source: Source, part: Part, folder: Path, most: int | None
    ) -> Generator[CleanJob, None, int]:
        """Jobs for the part's shards that are not cleaned; returns the characters it has."""
        if (done := read_json(folder / "read.json")) is not None:
            paths = [folder / f"{number:05d}" for number in range(done["shards"])]
            found = [Shard(path, source, part.name, shards.cleaned(path)) for path in paths]
            if all(shard.cleaned is not None for shard in found):
                self.text.shards += found
                return int(done["characters"])
        with disk_faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
        characters = number = 0
        for texts in cut_into_shards(part.documents(), most):
            path = folder / f"{number:05d}"
            shard = Shard(path, source, part.name, shards.cleaned(path))
            self.text.shards.append(shard)
            if shard.cleaned is None:
                self.waiting.append(shard)
                yield CleanJob(path, source.name, texts, self._clean)
            characters += sum(map(len, texts))
            number += 1
        write_json(folder / "read.json", {"shards": number, "characters": characters})
        return characters


def cut_into_shards(documents: Iterable[str], most: int | None) -> Iterator[list[str]]:
    """Documents in lists of some 16 M characters; none is begun after `most` in all."""
    gathered: list[str] = []
    waiting = read = 0
    for text in documents:
        gathered.append(text)
        waiting += len(text)
        read += len(text)
        if waiting >= shards.SHARD_CHARACTERS:
            yield gathered
            gathered, waiting = [], 0
        if most is not None and read >= most:
            break
    if gathered:
        yield gathered
