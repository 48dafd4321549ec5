"""Where a split's records are: folders of several layouts, and the Hugging Face hub.

A suite's folder has a folder for each task, with ``train.jsonl`` (also .csv, .tsv, .parquet;
text also compressed), or with the hub's ``train-00000-of-00002.parquet``, or is the classic
``glue_data`` tree, see `crammed.tasks.glue_data`. A task's own folder will do too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from crammed.errors import InputError
from crammed.files import sha256
from crammed.formats import hub
from crammed.formats.hub import HubSet
from crammed.formats.lines import COMPRESSIONS, File
from crammed.formats.records import (
    Record,
    Records,
    delimited_records,
    json_records,
    parquet_records,
)
from crammed.tasks.glue_data import glue_data_split
from crammed.tasks.task import Suite

_READERS = {
    ".jsonl": json_records,
    ".ndjson": json_records,
    ".json": json_records,
    ".csv": lambda file: delimited_records(file, ","),
    ".tsv": lambda file: delimited_records(file, "\t"),
    ".parquet": parquet_records,
}
_VALIDATION = ("validation", "dev", "val", "valid")
"""Names that go for one another."""


class FoundSplit(Protocol):
    """A split that is there."""

    @property
    def shown(self) -> str:
        """What messages call it."""
        ...

    def records(self) -> Iterator[tuple[str, Record]]:
        """Each with its place, for messages.

        Raises:
            InputError: damage; names the file and the line or row.
        """
        ...

    def digest(self) -> str:
        """What identifies the content."""
        ...


class Data(Protocol):
    """The data of a suite."""

    def find(self, folders: Sequence[str], split: str) -> FoundSplit | None:
        """A split of a task in the first of `folders` that is there; None if there is none."""
        ...

    def lacks(self, folders: Sequence[str], split: str) -> str:
        """Words for a split that is not there."""
        ...


def open_data(suite: Suite, data: Path | None) -> Data:
    """The suite's data in a folder, or on the hub if that is None.

    Raises:
        InputError: no such folder, or a suite that is not on the hub.
    """
    if data is None:
        if suite.hub is None:
            raise InputError(f"suite {suite.name} is not on the hub: name the folder of its data")
        return HubData(suite.hub, suite.converted)
    if not data.is_dir():
        raise InputError(f"{data} is no folder of tasks")
    return FolderData(data, alone=len(suite.tasks) == 1)


@dataclass(frozen=True)
class FileSplit:
    """The files of a split, one after the other."""

    files: tuple[Path, ...]

    @property
    def shown(self) -> str:
        return str(self.files[0] if len(self.files) == 1 else self.files[0].parent)

    def records(self) -> Iterator[tuple[str, Record]]:
        return chain.from_iterable(_records(file) for file in self.files)

    def digest(self) -> str:
        return " ".join(sha256(file) for file in self.files)


def _records(file: Path) -> Records:
    return _READERS[_inner(file).suffix](File(file, str(file)))


@dataclass(frozen=True)
class FolderData:
    """A folder that has a folder for each task, or is the only task's or a task's own.

    Attributes:
        alone: the suite has one task, whose splits may be in the folder itself.
    """

    root: Path
    alone: bool

    def find(self, folders: Sequence[str], split: str) -> FoundSplit | None:
        for folder in self._candidates(folders):
            classic = glue_data_split(folder, _spellings(split))
            if classic is not None:
                return classic
            for spelling in _spellings(split):
                files = _files(folder, spelling) or _files(folder / "data", spelling)
                if files:
                    return FileSplit(files)
        return None

    def lacks(self, folders: Sequence[str], split: str) -> str:
        at = next(self._candidates(folders), None)
        if at is None:
            there = sorted(each.name for each in self.root.iterdir() if each.is_dir())
            has = f"it has: {', '.join(there)}" if there else "it has no folders at all"
            return f"{self.root} has no folder {' or '.join(folders)} ({has})"
        there = sorted(each.name for each in at.iterdir())
        suffixes = ", ".join(suffix for suffix in _READERS if suffix not in (".ndjson", ".json"))
        return f"{at} has no {split} split, as {suffixes} (it has: {', '.join(there) or 'nothing'})"

    def _candidates(self, folders: Sequence[str]) -> Iterator[Path]:
        inside = sorted(each for each in self.root.iterdir() if each.is_dir())
        for name in folders:
            exact = self.root / name
            if exact in inside:
                yield exact
            yield from (e for e in inside if e != exact and _plain(e.name) in _plain_names(name))
        own = _plain(self.root.resolve().name)
        if self.alone or any(own in _plain_names(name) for name in folders):
            yield self.root


def _plain(name: str) -> str:
    """``STS-B`` is ``stsb``."""
    return re.sub(r"[-_ ]", "", name).lower()


def _plain_names(name: str) -> tuple[str, ...]:
    return (_plain(name), "diagnostic") if name == "ax" else (_plain(name),)


def _spellings(split: str) -> list[str]:
    for word in _VALIDATION:
        if re.match(rf"{word}(?![a-z])", split):
            others = [split.replace(word, other, 1) for other in _VALIDATION if other != word]
            return [split, *others]
    return [split]


def _inner(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in COMPRESSIONS else file


def _files(folder: Path, split: str) -> tuple[Path, ...]:
    """Files of a split; none if it is not here.

    Raises:
        InputError: several files could be it, or parts of it are missing.
    """
    if not folder.is_dir():
        return ()
    known = [file for file in sorted(folder.iterdir()) if _inner(file).suffix in _READERS]
    whole = [file for file in known if file.name == split or _inner(file).stem == split]
    whole = [file for file in whole if file.is_file()]
    if len(whole) > 1:
        names = " and ".join(file.name for file in whole)
        raise InputError(f"{folder} has {names}: keep the one that is the split {split}")
    if whole:
        return tuple(whole)
    if (folder / split).is_dir():
        return tuple(sorted((folder / split).glob("*.parquet")))
    return _numbered(known, split)


def _numbered(files: Sequence[Path], split: str) -> tuple[Path, ...]:
    """Parts as the hub names them: ``train-00000-of-00002.parquet``."""
    form = re.compile(rf"{re.escape(split)}-(\d+)-of-(\d+)(-\w+)?\.parquet")
    found = [(match, file) for file in files if (match := form.fullmatch(file.name))]
    if found:
        missing = set(range(int(found[0][0][2]))) - {int(match[1]) for match, _ in found}
        if missing:
            raise InputError(
                f"{found[0][1].parent} lacks part {min(missing)} of {found[0][0][2]} of the split "
                f"{split}: fetch it again"
            )
    return tuple(file for _, file in found)


@dataclass(frozen=True)
class HubData:
    """A data set of the hub with a configuration for each task; downloaded once, then cached."""

    repository: str
    converted: bool

    def find(self, folders: Sequence[str], split: str) -> FoundSplit | None:
        found = HubSet(self.repository, folders[0], split, converted=self.converted)
        name = f"{self.repository}/{folders[0]}"
        builder = hub.builder_of(name, found, found.newest)
        try:
            builder.download_and_prepare()
            if split not in builder.info.splits:
                return None
        except Exception as error:  # whatever the network and a dozen formats come up with
            cause = error.__cause__
            reason = cause if isinstance(cause, Exception) else error
            raise hub.fault(name, "cannot be downloaded", reason) from error
        return HubSplit(name, split, builder)

    def lacks(self, folders: Sequence[str], split: str) -> str:
        return f"hub:{self.repository}/{folders[0]} has no split {split}"


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set of the hub that is on this disk now."""

    name: str
    split: str
    builder: Any

    @cached_property
    def shown(self) -> str:
        return f"hub:{self.name}, {self.split}"

    def records(self) -> Iterator[tuple[str, Record]]:
        for row, record in enumerate(self.builder.as_dataset(split=self.split), 1):
            yield f"{self.shown}, row {row}", record

    def digest(self) -> str:
        return f"{self.name}/{self.split} {self.builder.hash}"
