"""Reads the documents of all sources into cleaned shards: the first stage of preparing a corpus.

The driver reads and workers clean. The shards of a part (a file) are kept in a folder whose name is
a hash of everything that determines them, so a part is read only once, however often a preparation
is killed or repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.cleaning.steps import settings_of
from crammed.data.preparing.read import cleaning_job
from crammed.data.preparing.read.cleaning_job import Cleaned, CleanJob, cleaned
from crammed.data.preparing.read.source import Part, Source, SourceChanged
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.hashes import json_hash
from crammed.machine.engine import Engine
from crammed.quantity import progress_rate
from crammed.terminal.progress import Progress

SCHEMA = 1
"""Version of the cleaned shards; each version has folders of its own."""
_LATER_STEPS = ("exact", "substring", "max_tokens_per_character")
"""Cleaning settings that do not affect the cleaned shards."""


@dataclass
class Shard:
    """A cleaned shard, where it is from, and the result of cleaning it, once known."""

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
    """All cleaned shards in order, the parts read from each source, and the parts skipped."""

    shards: list[Shard] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def require_documents(self) -> None:
        """Refuse to continue if no text is left.

        Raises:
            InputError: no part could be read, or cleaning dropped every document.
        """
        if not any(shard.cleaned.documents for shard in self.shards):
            why = f": {self.skipped[0]['why']}" if self.skipped else ", no document is left"
            raise InputError(f"the data holds no text{why}")


def read_and_clean(
    sources: Sequence[Source], data: DataConfig, folder: Path, engine: Engine, progress: Progress
) -> CleanedText:
    """Read every part that `folder` does not hold yet, and clean its documents.

    Raises:
        InputError: a part is damaged and `data.unreadable` is stop, or a part changed while it
            was read.
    """
    reader = _Reader(data, folder, progress)
    parts = sum(len(source.parts) for source in sources)
    with progress.task("reading and cleaning", parts) as task:
        began, characters = progress.clock(), 0
        results = engine.map(cleaning_job.clean_shard, reader.jobs(sources))
        for number, result in enumerate(results):
            for shard in reader.waiting[number]:
                shard.result = result
            characters += result.characters
            rate = progress_rate(characters, "characters", progress.clock() - began)
            place = f"{shard.part}, {min(reader.parts_read + 1, parts)} of {parts}"
            task.update(reader.parts_read, f"{rate}, {place}")
        if characters:
            rate = progress_rate(characters, "characters", progress.clock() - began)
            task.update(parts, rate)
    return reader.text


class _Reader:
    """Makes jobs for what is not cleaned yet, and lists all shards in order.

    Attributes:
        waiting: for each job in turn, the shards that share its result: more than one if the same
            content was found more than once.
    """

    def __init__(self, data: DataConfig, folder: Path, progress: Progress) -> None:
        self.text = CleanedText()
        self.waiting: list[list[Shard]] = []
        self.parts_read = 0
        self._begun: dict[Path, list[Shard]] = {}
        """The shards that share the job on a path; no two jobs may write the same files."""
        self._unreadable = data.unreadable
        settings = settings_of(data.clean)
        self._settings = {k: v for k, v in settings.items() if k not in _LATER_STEPS}
        self._clean = data.clean
        if data.clean.downstream is not None:  # workers may run in another folder
            absolute = str(Path(data.clean.downstream).absolute())
            self._clean = data.clean.model_copy(update={"downstream": absolute})
        self._folder = folder
        self._folders: set[Path] = set()
        """The folders of the parts that this call reads."""
        self._progress = progress

    def jobs(self, sources: Sequence[Source]) -> Iterator[CleanJob]:
        """Jobs for the shards that are not cleaned yet; fills `text` as it goes."""
        for source in sources:
            record: dict[str, Any] = {"name": source.name, "weight": source.weight, "parts": []}
            self.text.sources.append(record)
            left = source.max_characters
            for part in source.parts:
                if left is not None and left <= 0:
                    break
                before = len(self.text.shards)
                try:
                    content = _Content.of(part)
                    folder = self._folder / "parts" / self._name(source, content, left)
                    read = yield from self._jobs_of(source, part, folder, left, content)
                except SourceChanged:
                    raise
                except InputError as error:
                    if self._unreadable == "stop":
                        raise
                    self._progress.line(f"skipped  {part.name}: {error}")
                    self.text.skipped.append({"part": part.name, "why": str(error)})
                    del self.text.shards[before:]
                    continue
                finally:
                    self.parts_read += 1
                record["parts"].append(content.fingerprint)
                if left is not None:
                    left -= read

    def _name(self, source: Source, content: _Content, most: int | None) -> str:
        """Name of the folder for a part's shards."""
        size = shards.SHARD_CHARACTERS
        return json_hash([SCHEMA, content.fingerprint, source.reading, most, self._settings, size])

    def _jobs_of(
        self, source: Source, part: Part, folder: Path, most: int | None, content: _Content
    ) -> Generator[CleanJob, None, int]:
        """Jobs for the part's shards not cleaned yet; returns the number of characters read."""
        if (done := shards.read_done(folder / "read.json")) is not None:
            paths = [folder / f"{number:05d}" for number in range(done["shards"])]
            known = [self._shard(path, source, part) for path in paths]
            if all(shard.result is not None or shard.path in self._begun for shard in known):
                for shard in known:
                    self._needs_job(shard)
                return int(done["characters"])
        self._begin(folder, content)
        characters = number = 0
        with content.stays(part):
            for texts in cut_into_shards(part.documents(), most):
                shard = self._shard(folder / f"{number:05d}", source, part)
                if self._needs_job(shard):
                    yield CleanJob(shard.path, source.name, texts, self._clean)
                characters += sum(map(len, texts))
                number += 1
        shards.write_done(folder / "read.json", {"shards": number, "characters": characters})
        return characters

    def _begin(self, folder: Path, content: _Content) -> None:
        """Make the folder of a part that is to be read from its beginning.

        An earlier call that was stopped while reading the part may have left shards there. They
        hold this content only if the part has not been touched since.
        """
        if folder in self._folders:
            return
        self._folders.add(folder)
        with disk_faults(folder):
            if folder.exists() and shards.read_done(folder / "begun.json") != content.state:
                shutil.rmtree(folder)
            shards.write_done(folder / "begun.json", content.state)

    def _shard(self, path: Path, source: Source, part: Part) -> Shard:
        return Shard(path, source, part.name, cleaned(path))

    def _needs_job(self, shard: Shard) -> bool:
        """List a shard; true if it needs a job, having no result and none under way."""
        self.text.shards.append(shard)
        if shard.result is not None:
            return False
        if twins := self._begun.get(shard.path):
            shard.result = twins[0].result
            twins.append(shard)
            return False
        self._begun[shard.path] = [shard]
        self.waiting.append(self._begun[shard.path])
        return True


@dataclass(frozen=True)
class _Content:
    """What a part held when it was opened: `Part.state`, and then `Part.fingerprint`."""

    state: dict[str, Any]
    fingerprint: dict[str, Any]

    @classmethod
    def of(cls, part: Part) -> _Content:
        return cls(part.state(), part.fingerprint())

    @contextmanager
    def stays(self, part: Part) -> Iterator[None]:
        """Check after the part is read that its content has not changed.

        Raises:
            SourceChanged: it has, which may also have caused a fault found in reading.
        """
        fault: InputError | None = None
        try:
            yield
        except InputError as error:
            fault = error
        if part.state() != self.state and part.fingerprint() != self.fingerprint:
            raise SourceChanged(
                f"{part.name} changed while it was read: wait until nothing writes to it, and "
                "repeat the command"
            ) from fault
        if fault is not None:
            raise fault


def cut_into_shards(documents: Iterable[str], most: int | None) -> Iterator[list[str]]:
    """Lists of documents with about 16 million characters each.

    Args:
        most: number of characters after which no further document is begun; None for no limit.
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
