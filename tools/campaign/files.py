"""The file layer of a process under test, which counts and records all operations on its world.

It replaces Python's own functions that change files, and the files that `open` returns. A write by
a library itself (safetensors, Arrow) is one operation, ``native``.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Strike = Callable[[str, int, str], None]
"""Called before an operation with its kind, its number and its path; may raise or kill."""

_open, _os_open, _write = io.open, os.open, os.write


class Layer:
    """Counts the operations of this process on files below a folder, and records them.

    Args:
        root: the world; files outside are left alone.
        journal: file to which a line is added for each operation.
        kept: folder for files that are removed or replaced, named after their operations.
    """

    def __init__(self, root: Path, journal: Path, kept: Path, process: int, strike: Strike) -> None:
        self.root, self.kept, self.process, self.strike = str(root), kept, process, strike
        self.number = self.reads = 0
        self._began = time.monotonic()
        self._clock = time.monotonic
        self._journal = _os_open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.RLock()

    def below(self, path: Any, folder: int | None = None) -> str | None:
        """The path relative to the world; None if it is outside."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif folder is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))
        with contextlib.suppress(TypeError):
            whole = os.path.abspath(os.fsdecode(path))
            if whole.startswith(self.root + os.sep):
                return whole[len(self.root) + 1 :]
        return None

    def remark(
        self, kind: str, path: str = "", to: str = "", number: int = 0, **about: Any
    ) -> None:
        values = {"process": self.process, "number": number, "kind": kind, "path": path}
        values |= {"to": to, "about": about, "seconds": round(self._clock() - self._began, 4)}
        _write(self._journal, (json.dumps(values) + "\n").encode())

    def change(self, kind: str, path: str, to: str = "", **about: Any) -> None:
        """Count an operation that is about to happen, and let the fault strike."""
        with self._lock:
            self.number += 1
            number = self.number
        self.strike(kind, number, path)
        self.remark(kind, path, to, number, **about)

    def reading(self, path: str) -> None:
        """Count a file that is about to be read."""
        with self._lock:
            self.reads += 1
            number = self.reads
        self.strike("read", number, path)
        self.remark("read", path)

    def keep(self, path: Any, folder: int | None = None) -> None:
        """Keep a file that is about to be removed or replaced."""
        with contextlib.suppress(OSError):
            name = f"{self.process}-{self.number + 1}"
            os.link(path, self.kept / name, src_dir_fd=folder, follow_symlinks=False)

    def install(self) -> None:
        _install_folders(self)
        _install_opening(self)
        _install_native(self)


class _Raw(io.FileIO):
    """A file in the world, whose reads and writes are counted."""

    def __init__(
        self, layer: Layer, name: str, file: Any, mode: str, closefd: bool, opener: Any
    ) -> None:
        self._layer, self._path, self._read = layer, name, False
        super().__init__(file, mode, closefd, opener)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self._layer.change("write", self._path)
        except Torn:
            super().write(view[: len(view) // 2])
            os.kill(os.getpid(), 9)
        return super().write(view)

    def _reading(self) -> None:
        if not self._read:
            self._read = True
            self._layer.reading(self._path)

    def readinto(self, buffer: Any) -> int | None:
        self._reading()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._reading()
        return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        self._reading()
        return super().read(-1 if size is None else size)


class Torn(Exception):
    """Raised by a strike that kills in the middle of a write: half of the data is written."""


def _install_opening(layer: Layer) -> None:
    def opened(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **named: Any) -> Any:
        path = layer.below(file)
        if path is None:
            return _open(file, mode, buffering, *text, **named)
        raw_mode = mode.replace("t", "").replace("b", "")
        if set(raw_mode) & set("wax") and not isinstance(file, int):  # `os.open` has counted that
            layer.change("create", path, new=not os.path.exists(file))
        closefd, opener = named.pop("closefd", True), named.pop("opener", None)
        raw = _Raw(layer, path, file, raw_mode, closefd, opener)
        if buffering == 0:
            return raw
        kind: Any = io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered = io.BufferedRandom if "+" in mode else kind
        buffer = buffered(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if "b" in mode:
            return buffer
        reading: Any = io.TextIOWrapper
        lines = reading(buffer, *text, line_buffering=buffering == 1, **named)
        lines.mode = mode
        return lines

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = layer.below(path, dir_fd)
        if name is not None and flags & os.O_CREAT:
            new = not os.path.exists(os.path.join(layer.root, name))
            layer.change("create", name, new=new)
        return _os_open(path, flags, mode, dir_fd=dir_fd)

    for module, function in ((builtins, opened), (io, opened), (os, os_open)):
        setattr(module, "open", function)  # noqa: B010


def _install_folders(layer: Layer) -> None:
    """Replace the functions that change folders or sync files and folders to disk."""

    def renaming(real: Callable[..., None]) -> Callable[..., None]:
        def rename(old: Any, new: Any, **where: Any) -> None:
            source, target = layer.below(old), layer.below(new)
            if source is None or target is None:
                return real(old, new, **where)
            layer.keep(new)
            layer.change("rename", source, target)
            return real(old, new, **where)

        return rename

    def changing(kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Any, *given: Any, dir_fd: int | None = None, **named: Any) -> None:
            name = layer.below(path, dir_fd)
            if name is not None and (kind != "mkdir" or not os.path.isdir(path)):
                if kind == "remove":
                    layer.keep(path, dir_fd)
                layer.change(kind, name)
            return real(path, *given, dir_fd=dir_fd, **named)

        return change

    def syncing(real: Callable[[Any], None]) -> Callable[..., None]:
        def sync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            name = layer.below(descriptor)
            if name is None:
                return real(file)
            layer.change("sync", name)
            real(file)
            state = os.fstat(descriptor)
            layer.remark("synced", name, inode=state.st_ino, at=state.st_mtime_ns)
            return None

        return sync

    os.rename, os.replace = renaming(os.rename), renaming(os.replace)
    os.mkdir, os.rmdir = changing("mkdir", os.mkdir), changing("rmdir", os.rmdir)
    os.unlink, os.remove = changing("remove", os.unlink), changing("remove", os.remove)
    os.fsync, os.fdatasync = syncing(os.fsync), syncing(os.fdatasync)


def _install_native(layer: Layer) -> None:
    """Replace the functions with which libraries write files themselves."""
    import pyarrow as pa
    import safetensors
    import safetensors.torch

    def counted(real: Callable[..., Any], place: int, to_error: type[Exception]) -> Any:
        def write(*given: Any, **named: Any) -> Any:
            path = given[place] if len(given) > place else named["filename"]
            name = layer.below(path)
            if name is not None:
                try:
                    layer.change("native", name)
                except OSError as error:
                    if to_error is OSError:
                        raise
                    words = f"I/O error: {error.strerror} (os error {error.errno})"
                    raise to_error(words) from error
            return real(*given, **named)

        return write

    module: Any = safetensors.torch
    module.serialize_file = counted(module.serialize_file, 1, safetensors.SafetensorError)
    pa.OSFile = counted(pa.OSFile, 0, OSError)
