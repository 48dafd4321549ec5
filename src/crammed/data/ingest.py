"""Reads the documents of all sources into cleaned shards: the first stage of preparing a corpus.

The driver reads and workers clean. The shards of a part (a file) are kept in a folder whose name is
a hash of everything that decides them, so a part is read once, however often a preparation is
killed or repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config import DataConfig
from crammed.data import shard_cleaning, shards
from crammed.data.cleaning.steps import settings_of
from crammed.data.engine import Engine
from crammed.data.shard_cleaning import Cleaned, CleanJob, cleaned
from crammed.data.sources import Part, Source
from crammed.errors import InputError
from crammed.files import disk_faults, json_hash, read_json, write_json
from crammed.progress import Progress
from crammed.quantity import progress_rate

SCHEMA = 1
"""Version of the cleaned shards; shards of another version have another folder."""
_LATER_STEPS = ("exact", "substring", "max_tokens_per_character")
"""Cleaning steps that do not decide the cleaned shards."""


@dataclass
class Shard:
    """A cleaned shard, where it is from, and the result of cleaning it once that is known."""

    path: Path
    source: Source
    part: str
    result: Cleaned | None = None

    @property
    def cleaned(self) -> Cleaned:
        assert self.result is not None
        return self.result


@dataclass
class CleanedText:
    """All cleaned shards in order, what each source gave, and which parts were skipped."""

    shards: list[Shard] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)


def read_and_clean(
    sources: Sequence[Source], data: DataConfig, folder: Path, engine: Engine, progress: Progress
) -> CleanedText:
    """Read every part that `folder` does not hold yet, and clean its documents.

    Raises:
        InputError: a part is damaged and `data.unreadable` is stop, or no document is left.
    """
    reader = _Reader(data, folder, progress)
    parts = sum(len(source.parts) for source in sources)
    with progress.task("reading and cleaning", parts) as task:
        began, characters = progress.clock(), 0
        results = engine.map(shard_cleaning.clean_shard, reader.jobs(sources))
        for number, result in enumerate(results):
            shard = reader.waiting[number]
            shard.result = result
            characters += result.characters
            rate = progress_rate(characters, "characters", progress.clock() - began)
            place = f"{shard.part}, {min(reader.parts_read + 1, parts)} of {parts}"
            task.update(reader.parts_read, f"{rate}, {place}")
        if characters:
            rate = progress_rate(characters, "characters", progress.clock() - began)
            task.update(parts, rate)
    text = reader.text
    if not any(shard.cleaned.documents for shard in text.shards):
        why = f": {text.skipped[0]['why']}" if text.skipped else ", no document is left"
        raise InputError(f"the data holds no text{why}")
    return text


class _Reader:
    """Makes jobs of what is not cleaned yet, and lists all shards in order.

    Attributes:
        waiting: the shards of the jobs, in the order of the jobs.
    """

    def __init__(self, data: DataConfig, folder: Path, progress: Progress) -> None:
        self.text = CleanedText()
        self.waiting: list[Shard] = []
        self.parts_read = 0
        self._unreadable = data.unreadable
        settings = settings_of(data.clean)
        self._settings = {k: v for k, v in settings.items() if k not in _LATER_STEPS}
        self._clean = data.clean
        if data.clean.downstream is not None:  # workers may run in another folder
            absolute = str(Path(data.clean.downstream).absolute())
            self._clean = data.clean.model_copy(update={"downstream": absolute})
        self._folder = folder
        self._progress = progress

    def jobs(self, sources: Sequence[Source]) -> Iterator[CleanJob]:
        """Jobs for the shards that are not cleaned yet; fills `text` on the way."""
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
                    self._progress.line(f"skipped  {part.name}: {error}")
                    self.text.skipped.append({"part": part.name, "why": str(error)})
                    del self.text.shards[before:]
                    continue
                finally:
                    self.parts_read += 1
                record["parts"].append(fingerprint)
                if left is not None:
                    left -= read

    def _name(self, source: Source, fingerprint: dict[str, Any], most: int | None) -> str:
        """Name of the folder for the shards of a part."""
        size = shards.SHARD_CHARACTERS
        return json_hash([SCHEMA, fingerprint, source.reading, most, self._settings, size])

    def _jobs_of(
        self, source: Source, part: Part, folder: Path, most: int | None
    ) -> Generator[CleanJob, None, int]:
        """Jobs for the part's shards that are not cleaned yet; returns the part's characters."""
        if (done := read_json(folder / "read.json")) is not None:
            paths = [folder / f"{number:05d}" for number in range(done["shards"])]
            known = [Shard(path, source, part.name, cleaned(path)) for path in paths]
            if all(shard.result is not None for shard in known):
                self.text.shards += known
                return int(done["characters"])
        with disk_faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
        characters = number = 0
        for texts in cut_into_shards(part.documents(), most):
            path = folder / f"{number:05d}"
            shard = Shard(path, source, part.name, cleaned(path))
            self.text.shards.append(shard)
            if shard.result is None:
                self.waiting.append(shard)
                yield CleanJob(path, source.name, texts, self._clean)
            characters += sum(map(len, texts))
            number += 1
        write_json(folder / "read.json", {"shards": number, "characters": characters})
        return characters


def cut_into_shards(documents: Iterable[str], most: int | None) -> Iterator[list[str]]:
    """Lists of documents with some 16 M characters each.

    Args:
        most: characters after which no further document is begun; None for no limit.
    """
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
