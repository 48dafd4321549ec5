"""Reads the ``glue_data`` folders in which GLUE was first published.

Cells are separated by tabs, and quotation marks are literal. CoLA's labelled files have no header;
the other tasks' columns are renamed here to match the hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crammed.errors import InputError
from crammed.files.hashes import sha256
from crammed.formats.lines import File, lines
from crammed.formats.records import Record
from crammed.quantity import counted

_COLA = ("source", "label", "star", "sentence")
_COLUMNS: dict[str, Mapping[str, str]] = {
    "CoLA": {},
    "SST-2": {},
    "MRPC": {"Quality": "label", "#1 String": "sentence1", "#2 String": "sentence2"},
    "STS-B": {"score": "label"},
    "QQP": {"is_duplicate": "label", "id": "idx"},
    "MNLI": {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
    "QNLI": {},
    "RTE": {},
    "WNLI": {},
    "AX": {"sentence1": "premise", "sentence2": "hypothesis"},
    "diagnostic": {"sentence1": "premise", "sentence2": "hypothesis"},
}
_MSR_IDS = ("#1 ID", "#2 ID")


def glue_data_split(folder: Path, spellings: Sequence[str]) -> GlueDataSplit | None:
    """A split in one of these folders; None if the folder is not one of them or lacks the split.

    Args:
        spellings: names of the split, the preferred one first.
    """
    if folder.name not in _COLUMNS:
        return None
    names = [*spellings, *(["diagnostic", "AX"] if "test" in spellings else [])]
    for name in names:
        if (file := folder / f"{name}.tsv").is_file():
            return GlueDataSplit(file, folder.name)
    return _msr(folder, spellings) if folder.name == "MRPC" else None


def _msr(folder: Path, spellings: Sequence[str]) -> GlueDataSplit | None:
    """A split of MRPC as Microsoft published it; ``dev_ids.tsv`` lists the validation split."""
    if not {"train", "dev", "test"}.intersection(spellings):
        return None
    test = "test" in spellings
    file = folder / f"msr_paraphrase_{'test' if test else 'train'}.txt"
    if not file.is_file():
        return None
    if test:
        return GlueDataSplit(file, "MRPC")
    listed = folder / "dev_ids.tsv"
    if not listed.is_file():
        raise InputError(
            f"{folder} lacks dev_ids.tsv, which lists the validation rows of {file.name}: "
            "download it again"
        )
    ids = [tuple(line.split()) for _, line in lines(File(listed, str(listed)))]
    if not any(ids):
        raise InputError(f"{listed} lists no validation rows: download it again")
    return GlueDataSplit(file, "MRPC", frozenset(ids), "dev" in spellings)


@dataclass(frozen=True)
class GlueDataSplit:
    """A split in one file.

    Attributes:
        task: name of the file's folder.
        ids: id pairs of the validation rows, for a file that holds both splits.
        validates: whether this is such a file's validation split rather than its training split.
    """

    file: Path
    task: str
    ids: frozenset[tuple[str, ...]] = field(default=frozenset(), repr=False)
    validates: bool = False

    @property
    def shown(self) -> str:
        return str(self.file)

    def records(self) -> Iterator[tuple[str, Record]]:
        names = {"index": "idx", **_COLUMNS[self.task]}
        columns: Sequence[str] = ()
        for number, line in lines(File(self.file, str(self.file))):
            place = f"{self.file}, line {number}"
            cells = line.rstrip("\r\n").split("\t")
            if not columns:
                headless = self.task == "CoLA" and "sentence" not in cells
                columns = _COLA if headless else cells
                if not headless:
                    continue
            if self.task == "QQP" and len(cells) < len(columns):
                continue  # the published file has a few broken rows; official sizes exclude them
            if len(cells) != len(columns):
                found = counted(len(cells), "cell")
                raise InputError(f"{place}: {found} in a row of {len(columns)} columns")
            record = dict(zip(columns, cells, strict=True))
            is_validation = tuple(record.get(name, "") for name in _MSR_IDS) in self.ids
            if not self.ids or is_validation == self.validates:
                yield place, {names.get(name, name): cell for name, cell in record.items()}

    def digest(self) -> str:
        listed = self.file.with_name("dev_ids.tsv")
        return " ".join(sha256(file) for file in (self.file, *([listed] if self.ids else [])))
