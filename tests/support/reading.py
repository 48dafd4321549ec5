"""Reading sources into cleaned text in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crammed.config import DataConfig
from crammed.data import shards
from crammed.data.preparing.read import cleaning_job, reading_job
from crammed.data.preparing.read.cleaned import CleanedText
from crammed.data.preparing.read.ingest import read_and_clean
from crammed.data.preparing.read.source import open_sources
from crammed.machine.engine import Engine, Item, Result
from crammed.terminal.progress import SILENT, Progress
from support.text import documents, write_jsonl


class ThisProcess(Engine):
    """Does each job when its result is asked for, and notes it."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        for job in jobs:
            self.jobs.append(job)
            yield function(job)


def config_of(source: Path, **data: Any) -> DataConfig:
    return DataConfig.model_validate({"sources": [str(source)], **data})


def read_source(
    source: Path,
    work: Path,
    engine: Engine | None = None,
    progress: Progress = SILENT,
    **data: Any,
) -> CleanedText:
    config = config_of(source, **data)
    return read_and_clean(open_sources(config), config, work, engine or ThisProcess(), progress)


def write_files(folder: Path, files: int, count: int) -> Path:
    """A folder with so many files of `count` documents each, named by numbers."""
    for number in range(files):
        write_jsonl(folder / f"{number}.jsonl", documents(count, seed=number))
    return folder


def texts_of(text: CleanedText) -> list[list[str]]:
    """The documents of each shard."""
    return [shards.documents(shard.slices) for shard in text.shards]


class Cleaning:
    """Notes the blocks that are cleaned, and raises errors in the place of some.

    Attributes:
        sizes: numbers of their documents before cleaning.
        errors: by the number of the block, counted from 1.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, errors: dict[int, BaseException] | None = None
    ) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.errors = errors or {}
        monkeypatch.setattr(reading_job, "clean_block", self)

    def __call__(self, block: Path, texts: list[str], *more: Any) -> cleaning_job.Cleaned:
        self.names.append(block.name)
        self.sizes.append(len(texts))
        if (error := self.errors.get(len(self.names))) is not None:
            raise error
        return cleaning_job.clean_block(block, texts, *more)
