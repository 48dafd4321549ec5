"""Whether what a preparation writes will fit on the disk, told before it begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from crammed.config import CleanConfig
from crammed.data.preparing.read.cleaned import ReadBlocks
from crammed.data.preparing.read.part import FilePart, Part
from crammed.data.preparing.read.source import Source
from crammed.errors import InputError
from crammed.files.folders import missing_folders
from crammed.formats.lines import Faults
from crammed.formats.streams import COMPRESSIONS, Tap
from crammed.quantity import quantity

READ = 0.6
"""Bytes of cleaned text, as it is kept, per byte of text."""
MADE = 1.4
"""Bytes of everything else until the corpus is complete, itself included, per byte of text."""
REPEATED = 0.3
"""Bytes of hashes and places of lines or paragraphs per byte of text: 20 for a line of 67."""
CORPUS = 0.5
"""Bytes of the corpus per byte of text. All but `REPEATED`: `benchmarks/results/prepare.json`."""
_SAMPLE = 8_000_000
"""Bytes of a file that are read to see how much text it holds."""
_ELSEWHERE = "choose another --out (or --work, for crammed prepare)"
_ALL_TEXT = (".txt", ".md", ".rst")


def text_bytes(sources: Sequence[Source]) -> tuple[list[list[float]], list[str]]:
    """About how many bytes of text each part of each source holds, by its size; 0 if unknown.

    Also, for messages, the sources of which all parts are unknown, by name, and those with some, as
    'some files of NAME'.
    """
    sizes, unknown = [], []
    for source in sources:
        ratios: dict[tuple[str, str], float | None] = {}
        own = [_text_bytes(part, ratios) for part in source.parts]
        if None in own:
            every = all(size is None for size in own)
            unknown.append(source.name if every else f"some files of {source.name}")
        most = float("inf") if source.max_characters is None else source.max_characters
        known = [size or 0.0 for size in own]
        within = min(1.0, most / max(1.0, sum(known)))
        sizes.append([size * within for size in known])
    return sizes, unknown


def _text_bytes(part: Part, ratios: dict[tuple[str, str], float | None]) -> float | None:
    if not isinstance(part, FilePart):
        return None
    suffix = os.path.splitext(part.path)[1].lower()
    kind = (part.format, suffix if suffix in COMPRESSIONS else "")
    if kind not in ratios:
        ratios[kind] = _ratio(part)
    ratio = ratios[kind]
    return None if ratio is None else ratio * part.size()


def _ratio(part: FilePart) -> float | None:
    """Bytes of text per byte of the file; None if unknown."""
    if part.format in _ALL_TEXT and Path(part.path).suffix.lower() not in COMPRESSIONS:
        return 1.0
    taps: list[Tap] = []
    with suppress(InputError, OSError):  # reading it will report what is wrong
        blocks = part.blocks(_SAMPLE, taps)
        if blocks is not None and (block := next(blocks, None)) is not None:
            texts = part.documents_of(block, Faults(True))
            return sum(len(text.encode("utf-8", "replace")) for text in texts) / taps[0].bytes
    return None


def check_room(
    sources: Sequence[Source],
    unread: Sequence[tuple[ReadBlocks, range]],
    folder: Path,
    out: Path,
    clean: CleanConfig,
) -> Iterator[str]:
    """Check that a preparation will fit on the disks that it writes to.

    Args:
        unread: the parts of sources that are still to be read, and where their blocks will be.
        folder: for intermediate results.
        out: the corpus.
        clean: the steps, some of which take more than others.

    Yields:
        what to tell of each disk.

    Raises:
        InputError: it will not fit.
    """
    sizes, unknown = text_bytes(sources)
    text = sum(map(sum, sizes))
    to_read = sum(sizes[blocks.source][part] for blocks, parts in unread for part in parts)
    read = written(blocks.folder for blocks, _ in unread)
    made = MADE + (REPEATED if clean.repeated is not None else 0.0)
    needed = max(READ * to_read - read, 0.0) + max(made * text - written(made_folders(folder)), 0.0)
    for place, size in ((folder, needed), (out, 0.0 if _same_disk(folder, out) else CORPUS * text)):
        if (free := _free(place)) is None or not size:
            continue
        have = f"{quantity(free, 'B')} are free"
        if size > free:
            raise InputError(
                f"preparing this text takes about {quantity(size, 'B')} of disk at {place}, and "
                f"{have}: free some space, {_ELSEWHERE}, or read less with max_characters of a "
                "source"
            )
        more = f"; {', '.join(unknown)} not counted" if unknown else ""
        yield f"about {quantity(size, 'B')} at {place} until the corpus is complete, {have}{more}"


def check_copies(size: int, folder: Path) -> None:
    """Check that copies of this size fit on the disk of a folder.

    Raises:
        InputError: they do not.
    """
    free = _free(folder)
    if free is not None and size > free:
        raise InputError(
            f"copying takes {quantity(size, 'B')} of disk at {folder}, and {quantity(free, 'B')} "
            f"are free: free some space, or {_ELSEWHERE}"
        )


def made_folders(folder: Path) -> list[Path]:
    """The folders of corpora that were begun in a folder for intermediate results."""
    return list(folder.glob(f"made-{'[0-9a-f]' * 24}"))  # and nothing else that may be there


def written(folders: Iterable[Path]) -> int:
    """Bytes of all files below some folders."""
    files = (file for folder in folders for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _there(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    missing = missing_folders(path.absolute())
    return missing[-1].parent if missing else path


def _free(path: Path) -> int | None:
    with suppress(OSError):
        usage = shutil.disk_usage(_there(path))
        return usage.free if usage.total else None  # some network drives do not say
    return None


def _same_disk(one: Path, other: Path) -> bool:
    return _there(one).stat().st_dev == _there(other).stat().st_dev
