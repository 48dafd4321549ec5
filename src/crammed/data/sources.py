"""Where documents come from: text and JSON-lines files, plain or compressed, and `python-docs`.

Every fault in a file is an `InputError` that names the file and the line.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

import pyarrow as pa

from crammed.data.python_docs import PythonDocs
from crammed.errors import InputError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
FORMATS = (".txt", ".jsonl")
Documents = Literal["blank-line", "line", "file"]


class Source(Protocol):
    """Yields documents, and says what it is without a word about this machine's folders."""

    @property
    def name(self) -> str: ...

    def documents(self) -> Iterator[str]:
        """The documents, always in the same order."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the content: names, sizes, hashes or versions."""
        ...


def open_sources(names: Sequence[str], documents: Documents, text_field: str) -> list[Source]:
    """Turn the names a user gave into sources.

    Args:
        names: paths of files or folders, or ``python-docs``.
        documents: what one document of a .txt file is.
        text_field: the field of a .jsonl line that holds the text.

    Raises:
        InputError: no name at all, or a path that is missing, empty or of an unknown format.
    """
    if not names:
        raise InputError("no data: name a file or folder of text, as in --data my-text.jsonl.zst")
    sources: list[Source] = []
    for name in names:
        if name == "python-docs":
            sources.append(PythonDocs())
            continue
        path = Path(name)
        if not path.exists():
            raise InputError(f"no such data: {name} (a file, a folder, or python-docs)")
        files = [path]
        if path.is_dir():
            files = sorted(f for f in path.rglob("*") if f.is_file() and _format(f) in FORMATS)
            if not files:
                raise InputError(
                    f"{name} holds no {' or '.join(FORMATS)} file, plain or compressed"
                )
        elif _format(path) not in FORMATS:
            raise InputError(
                f"{name} is of no known format: {', '.join(FORMATS)}, each plain or "
                f"{', '.join(COMPRESSIONS)}"
            )
        for file in files:
            if file.stat().st_size == 0:
                raise InputError(f"{file} is empty")
        sources.append(Files(path.name, files, documents, text_field))
    return sources


def _format(path: Path) -> str:
    """``a.jsonl.zst`` -> ``.jsonl``."""
    inner = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return inner.suffix


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file as UTF-8 text, decompressed as its suffix says.

    Raises:
        InputError: unreadable, truncated, corrupt, or not UTF-8.
    """
    try:
        with _open_bytes(path) as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: is it a binary file?") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read to its end: {error}") from error


@contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".zst":
        with pa.input_stream(str(path), compression="zstd") as stream:
            yield cast(BinaryIO, io.BufferedReader(stream))
        return
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opener = openers.get(path.suffix, open)
    with opener(path, "rb") as file:
        yield cast(BinaryIO, file)


class Files:
    """Documents of text or JSON-lines files, in the order of the files."""

    def __init__(
        self, name: str, files: Sequence[Path], documents: Documents, text_field: str
    ) -> None:
        self.name = name
        self._files = tuple(files)
        self._documents = documents
        self._text_field = text_field

    def documents(self) -> Iterator[str]:
        for file in self._files:
            with open_text(file) as lines:
                if _format(file) == ".jsonl":
                    yield from self._json_lines(file, lines)
                else:
                    yield from self._plain(file, lines)

    def _json_lines(self, file: Path, lines: io.TextIOWrapper) -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{file}, line {number}: not valid JSON") from error
            if not isinstance(record, dict) or not isinstance(record.get(self._text_field), str):
                fields = ", ".join(record) if isinstance(record, dict) else type(record).__name__
                raise InputError(
                    f"{file}, line {number}: no text in field {self._text_field!r} (it has: "
                    f"{fields}); choose another with data.text_field=NAME"
                )
            yield record[self._text_field]

    def _plain(self, file: Path, lines: io.TextIOWrapper) -> Iterator[str]:
        gathered: list[str] = []
        for number, line in enumerate(lines, 1):
            if "\0" in line:
                raise InputError(f"{file}, line {number}: a NUL character: is it a binary file?")
            if self._documents == "line":
                yield line
            elif self._documents == "file" or line.strip():
                gathered.append(line)
            elif gathered:
                yield "".join(gathered)
                gathered = []
        if gathered:
            yield "".join(gathered)

    def fingerprint(self) -> dict[str, Any]:
        files = []
        for file in self._files:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files.append({"name": file.name, "bytes": file.stat().st_size, "sha256": digest})
        return {"files": files}
