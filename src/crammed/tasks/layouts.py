"""Finds the splits of a task: in folders of several layouts, or on the Hugging Face hub.

A suite's folder has a subfolder for each task, with files such as ``train.jsonl`` (or .csv, .tsv,
.parquet; text may be compressed) or the hub's ``train-00000-of-00002.parquet``. It may also be the
``glue_data`` tree (`crammed.tasks.glue_data`), or the folder of a single task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files.addresses import began_as_address
from crammed.files.hashes import json_hash, sha256
from crammed.files.regular import ordinary
from crammed.formats import hub
from crammed.formats.hub import HubDataset
from crammed.formats.lines import File
from crammed.formats.records import Record, Records, json_records
from crammed.formats.row_groups import row_group_records
from crammed.formats.streams import COMPRESSIONS
from crammed.formats.tables import csv_records, has_tabs, tsv_records
from crammed.tasks.glue_data import GlueDataSplit, glue_data_split
from crammed.tasks.task import OnHub, Suite

_JSON = partial(json_records, once=True)
_READERS: dict[str, Callable[[File], Records]] = {
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".json": _JSON,
    ".csv": csv_records,
    ".tsv": tsv_records,
    ".parquet": row_group_records,
}
_SUFFIXES = ".jsonl, .csv, .tsv, .parquet"
"""Those that messages name."""
_VALIDATION = ("validation", "dev", "val", "valid")
"""Interchangeable names of the validation split."""


def open_data(suite: Suite, data: Path | None) -> SuiteData:
    """Find the suite's data in a folder, or on the hub if `data` is None.

    Raises:
        InputError: there is no such folder, or the suite is not on the hub.
    """
    if data is None:
        if suite.hub is None:
            raise InputError(f"suite {suite.name} is not on the hub: name the folder of its data")
        return HubData(suite)
    if not data.is_dir():
        if began_as_address(data):
            raise InputError(f"{data} is an address: download it and name its folder")
        raise InputError(f"{data} is not a folder of tasks")
    (only, *others) = suite.tasks.values()
    return FolderData(data, () if others else only.folders)


@dataclass(frozen=True)
class FileSplit:
    """A split in one or more files, in order."""

    files: tuple[Path, ...]

    @property
    def shown(self) -> str:
        return str(self.files[0] if len(self.files) == 1 else self.files[0].parent)

    def records(self) -> Iterator[tuple[str, Record]]:
        return chain.from_iterable(
            _READERS.get(_inner(file).suffix, _JSON)(File(file, str(file))) for file in self.files
        )

    def digest(self) -> str:
        return " ".join(sha256(file) + _as_read(file) for file in self.files)


def _as_read(file: Path) -> str:
    """What the content leaves open: cells between tabs may be quoted in .csv, and not in .tsv.

    It is empty for all other files, so that their evaluations stay as they are.
    """
    is_csv = _inner(file).suffix == ".csv"
    return " with quoting" if is_csv and has_tabs(File(file, str(file))) else ""


def open_file(file: Path) -> FileSplit:
    """The rows of one file, such as those to predict; ``-`` is JSON lines from standard input.

    Raises:
        InputError: there is no such file, or its name says nothing of a known format.
    """
    if file == Path("-"):
        return FileSplit((Path("/dev/stdin"),))
    if _inner(file).suffix not in _READERS:
        raise InputError(f"{file} is of no known format: name a file that ends in {_SUFFIXES}")
    if not file.is_file():
        raise InputError(f"no such file: {file}")
    return FileSplit((ordinary(file),))


@dataclass(frozen=True)
class FolderData:
    """A folder with a subfolder for each task, or the folder of one task.

    Attributes:
        own: folders of the suite's only task, whose splits may be in `root` itself.
    """

    root: Path
    own: tuple[str, ...] = ()

    def find(self, folders: Sequence[str], split: str) -> FoundSplit | None:
        """A split of a task, from the first of `folders` that has it; None if none has."""
        for folder in self._candidates(folders):
            if (found := glue_data_split(folder, _spellings(split))) is not None:
                return found
            for spelling in _spellings(split):
                if files := _files(folder, spelling) or _files(folder / "data", spelling):
                    return FileSplit(files)
        return None

    def has_folder(self, folders: Sequence[str]) -> bool:
        """Whether one of these folders is in `root`, whatever it holds."""
        return any(folder != self.root for folder in self._candidates(folders))

    def missing(self, folders: Sequence[str], split: str) -> str:
        """A message that the split does not exist."""
        folder = next(self._candidates(folders), None)
        if folder is None:
            names = sorted(each.name for each in self.root.iterdir() if each.is_dir())
            has = f"it has: {', '.join(names)}" if names else "it has no folders at all"
            return f"{self.root} has no folder {' or '.join(folders)} ({has})"
        files = sorted(folder.iterdir())
        names = [each.name + " (no ordinary file)" * (not each.is_file()) for each in files]
        has = ", ".join(names) or "nothing"
        return f"{folder} has no {split} split, as {_SUFFIXES} (it has: {has})"

    def _candidates(self, folders: Sequence[str]) -> Iterator[Path]:
        """Existing folders that may hold the task's splits, likeliest first."""
        inside = sorted(each for each in self.root.iterdir() if each.is_dir())
        for name in folders:
            exact, plain = self.root / name, _plain_names(name)
            alike = [each for each in inside if each == exact or _plain(each.name) in plain]
            yield from sorted(alike, key=lambda each: each != exact)
        called = _plain(self.root.resolve().name)
        if tuple(folders) == self.own or any(called in _plain_names(name) for name in folders):
            yield self.root


def _plain(name: str) -> str:
    """A name without punctuation, in lower case: ``STS-B`` gives ``stsb``."""
    return re.sub(r"[-_ ]", "", name).lower()


def _plain_names(name: str) -> tuple[str, ...]:
    return (_plain(name), "diagnostic") if name == "ax" else (_plain(name),)


def _spellings(split: str) -> list[str]:
    """The name of a split, then its other common names."""
    for word in _VALIDATION:
        if re.match(rf"{word}(?![a-z])", split):
            others = [split.replace(word, other, 1) for other in _VALIDATION if other != word]
            return [split, *others]
    return [split]


def _inner(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in COMPRESSIONS else file


def _files(folder: Path, split: str) -> tuple[Path, ...]:
    """Files of a split in a folder; empty if the folder does not have the split."""
    if not folder.is_dir():
        return ()
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    known = [file for file in files if _inner(file).suffix in _READERS]
    whole = [file for file in known if file.name == split or _inner(file).stem == split]
    if len(whole) > 1:
        names = " and ".join(file.name for file in whole)
        raise InputError(f"{folder} has {names}: keep the one that is the split {split}")
    if whole:
        return tuple(whole)
    parts = tuple(map(ordinary, sorted((folder / split).glob("*.parquet"))))
    return parts or _numbered(known, split)


def _numbered(files: Sequence[Path], split: str) -> tuple[Path, ...]:
    """A split's numbered parts, named like the hub's ``train-00000-of-00002.parquet``."""
    form = re.compile(rf"{re.escape(split)}-(\d+)-of-(\d+)(-\w+)?\.parquet")
    found = [(match, file) for file in files if (match := form.fullmatch(file.name))]
    if not found:
        return ()
    folder, totals = files[0].parent, sorted({match[2] for match, _ in found})
    numbers = [int(match[1]) for match, _ in found]
    if len(totals) > 1:
        raise InputError(
            f"{folder} has parts of {totals[0]} and of {totals[1]} for the split {split}, which "
            "come from two downloads: remove the files of one"
        )
    if len(set(numbers)) < len(numbers):
        raise InputError(
            f"{folder} has two files for the same part of the split {split}, which come from two "
            "downloads: remove the files of one"
        )
    if missing := set(range(int(totals[0]))) - set(numbers):
        raise InputError(
            f"{folder} lacks part {min(missing)} of {totals[0]} of the split {split}: download it "
            "again"
        )
    return tuple(file for _, file in found)


@dataclass(frozen=True)
class HubData:
    """A suite's data sets on the hub; downloaded once, then cached."""

    suite: Suite

    def find(self, folders: Sequence[str], split: str) -> FoundSplit | None:
        if (at := self.suite.on_hub(folders)) is None:
            return None
        dataset = HubDataset(at.repository, at.config, split, converted=at.converted)
        name = _hub_name(at)
        builder = hub.builder_of(name, dataset, dataset.newest)
        try:
            builder.download_and_prepare()
            if split not in builder.info.splits:
                return None
        except Exception as error:  # the network and a dozen formats may raise anything
            cause = error.__cause__
            reason = cause if isinstance(cause, Exception) else error
            raise hub.fault(name, "cannot be downloaded", reason) from error
        return HubSplit(name, split, builder, at.columns)

    def missing(self, folders: Sequence[str], split: str) -> str:
        if (at := self.suite.on_hub(folders)) is None:
            named = " or ".join(folders)
            return f"suite {self.suite.name} does not say where {named} is on the hub"
        return f"hub:{_hub_name(at)} has no split {split}"


def _hub_name(at: OnHub) -> str:
    return at.repository if at.config is None else f"{at.repository}/{at.config}"


@dataclass(frozen=True)
class HubSplit:
    """A split of a hub data set that has been downloaded.

    Attributes:
        columns: names that its records get -> the names that the data set has.
    """

    name: str
    split: str
    builder: Any
    columns: Mapping[str, str]

    @cached_property
    def shown(self) -> str:
        return f"hub:{self.name}, {self.split}"

    def records(self) -> Iterator[tuple[str, Record]]:
        for row, record in enumerate(self.builder.as_dataset(split=self.split), 1):
            renamed = {new: record[old] for new, old in self.columns.items() if old in record}
            yield f"{self.shown}, row {row}", {**record, **renamed}

    def digest(self) -> str:
        columns = f" {json_hash(dict(self.columns))}" if self.columns else ""
        return f"{self.name}/{self.split} {self.builder.hash}{columns}"


def rows_of(split: FoundSplit) -> tuple[str, bool]:
    """What tells the rows of a split from those of another, which may be in the same file."""
    return split.digest(), isinstance(split, GlueDataSplit) and split.validates


SuiteData = FolderData | HubData
FoundSplit = GlueDataSplit | FileSplit | HubSplit
"""The data of a split that exists: its name in messages, each record after its place, and a text
that identifies its content. Records raise an `InputError` that names the place of damage."""
