"""Text beside one's own: general text, replayed or to measure forgetting on, and that of tasks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crammed.config import DataConfig, DownstreamConfig
from crammed.data.preparing.read.source import open_sources
from crammed.data.preparing.read.task_texts import open_training_texts
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.errors import InputError
from crammed.files.folders import new_folder, publish
from crammed.files.writing import read_json, write_json
from crammed.formats.lines import Faults
from crammed.runs.directory import RunDir
from crammed.terminal.progress import Progress

SHARE = 0.1
"""Share of the text that is replayed, unless it is given."""
OLD_TEXT = "old-text"


@dataclass(frozen=True)
class Replay:
    """General text to mix into training.

    Attributes:
        share: its share of all text, in characters.
    """

    path: str
    share: float
    _sizes: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, words: str) -> Replay:
        """Read ``PATH`` or ``PATH:SHARE``.

        Raises:
            InputError: the share is not between 0 and 1.
        """
        path, _, last = words.rpartition(":")
        try:
            share = float(last)
        except ValueError:  # a path with a colon
            path, share = words, SHARE
        path = path or words
        if not 0.0 < share < 1.0:
            raise InputError(f"--replay {words}: the share must be between 0 and 1, such as 0.1")
        return cls(path, share)

    def beside(self, data: DataConfig) -> list[dict[str, Any]]:
        """The sources of `data`, and as much of the beginning of this text as its share takes.

        Raises:
            InputError: a source cannot be read, or not twice, or a temperature sets the shares.
        """
        if data.mix.temperature is not None:
            raise InputError(
                "--replay and data.mix.temperature both set the share of the general text: leave "
                "one of them out"
            )
        for source in data.sources:
            if source.is_remote or source.path == "-":
                raise InputError(
                    f"--replay measures the text first, and {source.path} is not on this machine: "
                    "copy it into a file, and name that with --data"
                )
        if (asked := data.model_dump_json()) not in self._sizes:  # commands may ask twice
            self._sizes[asked] = _size(data)
        most = max(1, round(self._sizes[asked] * self.share / (1.0 - self.share)))
        return [*_own(data), {"path": self.path, "max_characters": most}]


@dataclass(frozen=True)
class TaskTexts:
    """Texts of one's own tasks to mix into training (Gururangan et al. 2020).

    Attributes:
        suite, data: as in `SourceConfig`.
    """

    suite: str
    data: str

    @classmethod
    def of(cls, suite: str, data: str) -> TaskTexts:
        """A suite and the folder of its tasks, or ``hub``, to be found from any folder.

        Raises:
            InputError: there is no such suite or no data, or training rows are scored.
        """
        named = DownstreamConfig(suite=suite, data=data).absolute()
        open_training_texts(named.suite, named.data)
        return cls(named.suite, named.data)

    def beside(self, data: DataConfig) -> list[dict[str, Any]]:
        """The sources of `data`, and these texts."""
        return [*_own(data), {"path": self.data, "suite": self.suite}]


def _size(data: DataConfig) -> float:
    """The characters of the sources of `data`, times their weights."""
    faults = Faults(data.unreadable == "skip")
    size = 0.0
    for opened in open_sources(data):
        lengths = (len(text) for part in opened.parts for text in part.documents(faults))
        found = sum(lengths)
        size += opened.weight * min(found, opened.max_characters or found)
    return size


def _own(data: DataConfig) -> list[dict[str, Any]]:
    return [source.model_dump(mode="json") for source in data.sources]


@dataclass(frozen=True)
class OldText:
    """Text of the domain that the adapted model comes from, kept in the run.

    Attributes:
        file: JSON lines with a field ``text``.
        about: its ``name`` and ``sha256``.
    """

    file: Path
    about: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunDir, path: str | None, progress: Progress) -> OldText | None:
        """The text that `path` names, or else what the run has; None if there is neither.

        Raises:
            InputError: the text cannot be read, or there is none.
        """
        folder, fresh = run.path / OLD_TEXT, run.path / f"{OLD_TEXT}.new"
        if path is None and fresh.exists() and not folder.exists():
            publish(fresh, folder)  # a process was killed before it did
        if path is not None:
            shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed
            with new_folder(fresh) as aside:
                given = GivenHeldout.given([path], run.config.data, aside, progress, "--old-text")
                write_json(aside / "about.json", {"name": Path(path).name, "sha256": given.sha256})
            shutil.rmtree(folder, ignore_errors=True)  # not before there is another
            publish(fresh, folder)
        about = read_json(folder / "about.json")
        return None if about is None else cls(folder / "given-heldout.jsonl.gz", about)
