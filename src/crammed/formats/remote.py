"""Files and folders elsewhere, named by an address such as s3://bucket/texts, through fsspec.

Nothing is read or written in place: whole files are copied from an address or to it. Whatever goes
wrong there is an `InputError`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.files.addresses import WEB, last_part, without_secrets
from crammed.files.faults import disk_faults
from crammed.files.folders import inside, make_folder, sync
from crammed.files.hashes import json_hash
from crammed.files.writing import read_json, write_json

_IN_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""There, files need no folder, and making one would also make a bucket of a mistyped name."""
_S3 = (
    "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public bucket "
    "FSSPEC_S3_ANON=true"
)
_KEYS = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), "GOOGLE_APPLICATION_CREDENTIALS to the file of a key"),
    **dict.fromkeys(("az", "abfs", "abfss"), "AZURE_STORAGE_CONNECTION_STRING"),
}
"""Environment variables from which libraries take access keys."""
_OF_KEYS = re.compile(r"credential|anonymous", re.IGNORECASE)
"""In what they say where there are none."""
_IDENTIFYING = (
    *("size", "etag", "mtime", "lastmodified", "last-modified", "last_modified", "created"),
    *("content-md5", "md5hash", "generation", "blob_id", "sha256"),
)
"""What file systems call that which changes whenever the content of a file does."""
_MISSING = {
    "(repository not found)": ": there is no such repository, or it is private (set HF_TOKEN); "
    "a data set's address begins with hf://datasets/OWNER/NAME",
    "(revision not found)": ": the repository has no such revision",
}
"""What to say of a missing file if the error of hf:// says this."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address.

    Attributes:
        path: what its file system calls it.
        below: its path below the folder or the glob that was named, or its name.
        state: what changes if the content does; empty if the file system knows nothing of the kind.
    """

    path: str
    below: str
    state: dict[str, str]

    @property
    def size(self) -> int | None:
        """Its bytes, if known."""
        size = self.state.get("size", "")
        return int(size) if size.isdigit() else None


@dataclass(frozen=True)
class Remote:
    """An address, and the file system that it belongs to."""

    address: str
    system: Any
    root: str

    @classmethod
    def at(cls, address: str) -> Remote:
        shown = without_secrets(address)
        fsspec = import_extra("fsspec", "remote", shown)
        protocol = _protocol(address)
        options: dict[str, Any] = {}
        try:
            system = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise InputError(_to_install(protocol, str(error))) from error
        except ValueError as error:
            raise InputError(f"{shown}: unknown kind of address, {protocol}://") from error
        if protocol == "hf":  # it would print two lines for each of a file's attempts, and bars
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
            import_extra("huggingface_hub.utils", "hf", address).disable_progress_bars()
        if protocol in WEB:  # a download may take hours, but no answer takes a minute
            aiohttp = import_extra("aiohttp", "remote", shown)
            waits = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=60)
            options = {"client_kwargs": {"timeout": waits, "trust_env": True}}
        with _faults(address):
            options |= system._get_kwargs_from_urls(address)  # server, user, password
            _refuse_without_server(shown, system, options)
            # what was listed or read in an earlier preparation may have changed since
            found = system(skip_instance_cache=True, use_listings_cache=False, **options)
            return cls(address, found, system._strip_protocol(address))

    @property
    def commits(self) -> bool:
        """Whether each file that is written is a commit, of which two at once are in conflict."""
        return _protocol(self.address) == "hf"

    @property
    def is_glob(self) -> bool:
        """Whether the address is a pattern; in addresses of the web, ``?`` begins a query."""
        marks = "*" if _protocol(self.address) in WEB else "*?["
        return any(mark in self.root for mark in marks)

    def files(self) -> list[RemoteFile]:
        """The file that the address names, or all files of a folder or a glob, sorted.

        Raises:
            InputError: there is nothing, or it cannot be reached.
        """
        with _faults(self.address):
            if self.is_glob:
                folder = re.split(r"[*?[]", self.root, maxsplit=1)[0].rpartition("/")[0]
                return self._listed(folder, self._matching())
            if not self.is_folder:
                return [self.look_up(RemoteFile(self.root, last_part(self.address), {}))]
            found = self.system.find(self.root, detail=True)
            return self._listed(self.root.rstrip("/"), found)

    def _matching(self) -> dict[str, Any]:
        """What is known of the files that match the glob, and of those in folders that match it."""
        found = self.system.glob(self.root, detail=True)
        if not found:
            raise FileNotFoundError(self.root)
        listed: dict[str, Any] = {}
        for path, info in found.items():
            is_file = info["type"] == "file"
            listed |= {path: info} if is_file else self.system.find(path, detail=True)
        return listed

    @cached_property
    def is_folder(self) -> bool:
        """Whether the address names a folder; on the web, one ends with a slash."""
        if _protocol(self.address) in WEB:
            return self.root.endswith("/")
        with _faults(self.address):
            return bool(self.system.isdir(self.root))

    def _listed(self, folder: str, found: Mapping[str, Any]) -> list[RemoteFile]:
        named = unquote if _protocol(self.address) in WEB else str
        below = {path: named(path.removeprefix(folder).lstrip("/")) for path in found}
        return [
            RemoteFile(path, name, _state(found[path]))
            for path, name in sorted(below.items(), key=lambda item: item[1])
            if name and not name.endswith("/") and not re.search(r"(^|/)\.", name)
        ]

    def look_up(self, file: RemoteFile) -> RemoteFile:
        """The file with its present state."""
        with _faults(self.address):
            return RemoteFile(file.path, file.below, _state(self.system.info(file.path)))

    def file(self, name: str) -> RemoteFile | None:
        """A file in the folder that the address names, with its state; None if it is missing."""
        path = f"{self.root.rstrip('/')}/{name}"
        with _faults(self.address):
            if not self.system.exists(path):
                return None
        return self.look_up(RemoteFile(path, name, {}))

    def read(self, file: RemoteFile) -> bytes:
        """The content of a small file."""
        with _faults(self.address):
            return bytes(self.system.cat_file(file.path))

    def put(self, file: Path, name: str) -> None:
        """Copy a file of this machine into the folder that the address names.

        Raises:
            InputError: it cannot be written there.
        """
        if _protocol(self.address) in WEB:
            shown = without_secrets(self.address)
            raise InputError(f"{shown}: nothing can be written to addresses of the web")
        with _faults(self.address):
            if _protocol(self.address) not in _IN_BUCKETS:
                self.system.makedirs(self.root, exist_ok=True)
            self.system.put_file(str(file), f"{self.root.rstrip('/')}/{name}")

    def download(self, file: RemoteFile, place: Path) -> int:
        """Copy a file with its state to `place`; returns its size in bytes.

        Raises:
            InputError: it cannot be read to its end, or changes while it is read.
        """
        with disk_faults(place), _faults(self.address):
            self.system.get_file(file.path, str(place))
            size = place.stat().st_size
            if self.look_up(file).state != file.state or file.size not in (None, size):
                shown = without_secrets(self.address)
                raise InputError(
                    f"{shown}: {file.below} was cut off, or changed while it was copied: "
                    "repeat the command"
                )
            return size

    def fetch(self, file: RemoteFile, folder: Path, notes: Path) -> Path:
        """Copy a file to `folder`, unless it is there and has not changed since.

        Args:
            file: with its state.
            notes: a folder for the states of the copies.

        Raises:
            InputError: it cannot be read to its end, or changes while it is read.
        """
        place = inside(folder, file.below, without_secrets(self.address))
        note = notes / f"{json_hash(file.below)}.json"
        known = len(file.state) > ("size" in file.state)
        if known and place.is_file() and read_json(note) == file.state:
            return place
        make_folder(place.parent)
        make_folder(notes)
        unfinished = notes / f"{json_hash(file.below)}.part"
        self.download(file, unfinished)
        with disk_faults(place):
            sync(unfinished)
            unfinished.replace(place)
        write_json(note, file.state)
        return place


def _refuse_without_server(shown: str, system: Any, options: Mapping[str, Any]) -> None:
    """Refuse an address without the server that its file system needs."""
    try:
        signature(system.__init__).bind(None, **options)
    except TypeError as error:
        protocol, _, rest = shown.partition("://")
        if rest and not rest.startswith("/"):
            raise
        raise InputError(
            f"{shown} names no server: write {protocol}://SERVER/{rest.lstrip('/')}"
        ) from error


def _state(info: Mapping[str, Any]) -> dict[str, str]:
    """What a file system says of a file, as far as it changes if the content does."""
    known = {key.lower(): value for key, value in info.items()}
    return {key: str(known[key]) for key in _IDENTIFYING if known.get(key) is not None}


def _protocol(address: str) -> str:
    return address.partition("://")[0].lower()


@contextmanager
def _faults(address: str) -> Iterator[None]:
    """Turn whatever the network and a dozen libraries may raise into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        why = next((said for part, said in _MISSING.items() if part in str(error)), "")
        raise InputError(f"no such data: {without_secrets(address)}{why}") from error
    except Exception as error:
        silent = "no answer in time" if isinstance(error, TimeoutError) else ""
        why = " ".join(str(error).split()) or silent or type(error).__name__
        why = why.replace(address, without_secrets(address))
        if isinstance(error, PermissionError) or _OF_KEYS.search(why):
            keys = _KEYS.get(_protocol(address))
            why = f"{why.rstrip('.')}; set {keys}" if keys else why
        raise InputError(f"{without_secrets(address)} cannot be reached: {why}") from error


def _to_install(protocol: str, said: str) -> str:
    """What to install for a protocol, given what fsspec says about it."""
    if protocol in WEB:
        return f"{protocol}:// needs aiohttp: pip install 'crammed[remote]'"
    packages = re.findall(r"[Ii]nstall (?:the )?[\"'`]?([\w.-]+)", said)
    what = f"pip install {packages[0]}" if packages else said.split(chr(10))[0]
    return f"{protocol}:// needs another package: {what}"
