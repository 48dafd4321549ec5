"""Reads the files in zip and tar archives one after the other, without unpacking any to disk."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from crammed.errors import InputError
from crammed.files.faults import AGAIN
from crammed.formats.lines import CutShort, Faults, File, open_bytes, open_stored, read_faults
from crammed.formats.streams import BUFFER

_SEEN = 1 << 20
"""Bytes of a file that `peek` shows: more than a block of .bz2, which is unpacked as a whole."""
_LONGEST_NAME = 1 << 20
"""Bytes of a tar header that holds a name; it is read into memory."""


@dataclass(frozen=True)
class Member:
    """A file in an archive, which must be read before the next one is.

    Attributes:
        name: as the archive has it; never the name of a file on this machine.
        bytes: its size by the archive's account.
    """

    name: PurePosixPath
    bytes: int
    stream: io.BufferedReader


def members(file: File, format: str, faults: Faults) -> Iterator[Member]:
    """The files of an archive in its own order; hidden ones, links and folders are left out.

    Args:
        format: .zip or .tar.

    Raises:
        InputError: the archive is damaged, or has parts that are encrypted or overlap.
    """
    for member in _zipped(file, faults) if format == ".zip" else _tarred(file):
        if not any(map(_is_hidden, member.name.parts)):
            yield member


def _zipped(file: File, faults: Faults) -> Iterator[Member]:
    with read_faults(file), open_stored(file) as stored, zipfile.ZipFile(stored) as archive:
        listed = archive.infolist()
        if sum(entry.compress_size for entry in listed) > stored.seek(0, io.SEEK_END):
            raise CutShort(f"{file.shown}: files overlap in it: it is damaged, or made to do harm")
        for entry in listed:
            if not entry.filename:
                faults.found(InputError(f"{file.shown}: a file in it has no name: it is damaged"))
                continue
            if entry.is_dir() or stat.S_ISLNK(entry.external_attr >> 16):
                continue
            try:
                content = archive.open(entry)
            except (RuntimeError, ValueError, zipfile.BadZipFile) as error:
                why = "encrypted" if entry.flag_bits & 1 else str(error)
                faults.found(InputError(f"{file.shown}, {entry.filename!r}: {why}"))
                continue
            with content:
                yield Member(PurePosixPath(entry.filename), entry.file_size, _buffered(content))


def _tarred(file: File) -> Iterator[Member]:
    with open_bytes(file) as opened, read_faults(file):
        stream = _Ending(opened)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None:
                    yield Member(PurePosixPath(entry.name), entry.size, _buffered(content))
        rest = stream.since(archive.offset)
        if not rest or rest.strip(b"\0") or stream.has_more():
            why = "cut off, or a broken header"
            raise CutShort(f"{file.shown} cannot be read to its end: {why}; {AGAIN}")


def _buffered(content: object) -> io.BufferedReader:
    # has what is needed of a raw stream
    return io.BufferedReader(content, _SEEN)  # type: ignore[arg-type]


def _is_hidden(name: str) -> bool:
    return name == "__MACOSX" or (name.startswith(".") and name not in (".", ".."))


class _Ending:
    """A stream that keeps what `tarfile` has read last.

    For `tarfile`, the end of the file or a broken header is the end of the archive.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._kept = b""
        self._read = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._kept = (self._kept + data)[-2 * tarfile.RECORDSIZE :]
        self._read += len(data)
        return data

    def since(self, offset: int) -> bytes:
        """What has been read from this offset on."""
        return self._kept[max(0, len(self._kept) - self._read + offset) :]

    def has_more(self) -> bool:
        """Whether anything but zeros follows."""
        return any(data.strip(b"\0") for data in iter(lambda: self._stream.read(BUFFER), b""))


class _Header(tarfile.TarInfo):
    """A header of a tar archive, whose names do not fill the memory."""

    _NAMES = (
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    )

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in self._NAMES and self.size > _LONGEST_NAME:
            raise tarfile.ReadError("a header that is too long")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]
