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
from crammed.errors import InputError
from crammed.machine.engine import Engine, Item, Result
from crammed.terminal.progress import SILENT


class ThisProcess:
    """Does each job when its result is asked for, and notes it."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def map(self, function: Callable[[Item], Result], jobs: Iterable[Item]) -> Iterator[Result]:
        for job in jobs:
            self.jobs.append(job)
            yield function(job)


def config_of(source: Path, **data: Any) -> DataConfig:
    return DataConfig.model_validate({"sources": [str(source)], **data})


def read_source(source: Path, work: Path, engine: Engine | None = None, **data: Any) -> CleanedText:
    config = config_of(source, **data)
    return read_and_clean(open_sources(config), config, work, engine or ThisProcess(), SILENT)


def texts_of(text: CleanedText) -> list[list[str]]:
    """The documents of each shard."""
    return [shards.documents(shard.slices) for shard in text.shards]


def disk_full_at(monkeypatch: pytest.MonkeyPatch, block: int) -> list[str]:
    """Fail once, at this block, counted from 1; the names of all that are cleaned, as they come."""
    cleaned: list[str] = []
    clean = cleaning_job.clean_block

    def failing(path: Path, *more: Any) -> Any:
        cleaned.append(path.name)
        if len(cleaned) == block:
            raise InputError("the disk is full")
        return clean(path, *more)

    monkeypatch.setattr(reading_job, "clean_block", failing)
    return cleaned
