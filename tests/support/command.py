"""Python commands as a user types them, each in a process of its own.

On Linux they are forked from a server that has imported the libraries (`support.server`).
Elsewhere, and with ``CRAMMED_TESTS_FORK=0``, each starts a fresh interpreter, which takes seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from types import MappingProxyType
from typing import IO, Any

FORKS = sys.platform == "linux" and os.environ.get("CRAMMED_TESTS_FORK", "1") == "1"
PATIENCE = 900.0
"""Seconds after which a command counts as hanging; none takes nearly as long."""
NOTHING: Mapping[str, str] = MappingProxyType({})
_ADDRESS = "CRAMMED_TESTS_SERVER"
_OPTIONS = {"stdin", "stdout", "stderr", "text", "cwd", "env", "start_new_session"}
_READ_AT_START = ("PYTHONHASHSEED", "PYTHONPATH", "RAYON_NUM_THREADS")
"""Variables that are read once at the start, so that a forked process would miss a change."""


def crammed(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Run ``crammed`` with these words."""
    return python("-m", "crammed", *words, cwd=cwd, env=env)


def python(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these words, and these variables besides those of this process."""
    with started(*words, cwd=cwd, env=env) as process:
        out, error = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def prepared(first: str) -> list[str]:
    """Words in place of ``-m crammed`` that execute a statement first."""
    return ["-c", f"{first}\nfrom crammed.cli.app import main\nmain()"]


def dying(at: str, call: int = 1, first: str = "", by: str = "SIGKILL") -> list[str]:
    """Words in place of ``-m crammed`` that kill it, as by ``kill -9``, when a function is called.

    Args:
        at: the function that is called, ``module:name`` or ``module:class.name``.
        call: the number of the call that kills, counted from 1.
        first: a statement to execute first.
    """
    module, _, path = at.partition(":")
    owner, _, name = f"sys.modules[{module!r}].{path}".rpartition(".")
    code = f"""
import itertools, os, signal, sys
import {module}
{first}
calls, called = itertools.count(1), {owner}.{name}
def kill_or_call(*args, **kwargs):
    if next(calls) == {call}:
        os.kill(os.getpid(), signal.{by})
    return called(*args, **kwargs)
{owner}.{name} = kill_or_call
from crammed.cli.app import main
main()
"""
    return ["-c", code]


@contextlib.contextmanager
def started(
    *words: str | Path,
    cwd: Path | None = None,
    errors: Path | None = None,
    env: Mapping[str, str] = NOTHING,
) -> Iterator[subprocess.Popen[str]]:
    """Like `python`, as a context in which the process runs; leaving the context kills it.

    Args:
        errors: a file for standard error, which can be read while the process runs.
    """
    process = popen(
        [sys.executable, *map(str, words)],
        stdout=PIPE,
        stderr=PIPE if errors is None else errors.open("w"),
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(event: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until `event` is true; the process that makes it true must not end before that."""
    until = time.monotonic() + PATIENCE
    while not event():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing happens"
        time.sleep(0.01)


def forking(real: Callable[..., Any]) -> Callable[..., Any]:
    """A ``subprocess.Popen`` that lets the server fork Python commands wherever possible."""

    def start(command: Any, **options: Any) -> Any:
        given = options.get("env") or os.environ
        fresh = any(given.get(name) != os.environ.get(name) for name in _READ_AT_START)
        ours = isinstance(command, list) and command[0] == sys.executable and not fresh
        if ours and options.keys() <= _OPTIONS and options.get("stdin", DEVNULL) == DEVNULL:
            return _Forked(command, **options)
        return real(command, **options)

    return start


popen: Callable[..., Any] = forking(subprocess.Popen) if FORKS else subprocess.Popen
"""``subprocess.Popen``, for code under test that starts Python commands."""


class _Forked:
    """A process that the server forked, with the part of ``subprocess.Popen`` that tests need."""

    def __init__(
        self,
        command: Sequence[str],
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        cwd: Path | str | None = None,
        env: Any = None,
        start_new_session: bool = False,
        stdin: int = DEVNULL,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self._text = text
        self._out, self._error = _kept(stdout), _kept(stderr)
        out = _descriptor(stdout, self._out, 1)
        error = out if stderr == STDOUT else _descriptor(stderr, self._error, 2)
        request = {
            "command": list(command),
            "cwd": os.path.abspath(cwd or "."),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        self._server = socket.socket(socket.AF_UNIX)
        if _ADDRESS not in os.environ:
            start_server()
        self._server.connect(os.environ[_ADDRESS])
        line = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(self._server, [line], [out, error])
        self._server.sendall(line[sent:])
        self._answers = b""
        self.pid = self._answer()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(1e-3)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._answer(timeout)
            self._server.close()
        return self.returncode

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Wait for its end; returns what it wrote to the pipes that were asked for."""
        assert input is None
        self.wait(timeout)
        return self._written(self._out), self._written(self._error)

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, which)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self, timeout: float | None = None) -> int:
        self._server.settimeout(timeout)
        while b"\n" not in self._answers:
            try:
                more = self._server.recv(64)
            except TimeoutError:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            assert more, "the server that forks commands is gone"
            self._answers += more
        answer, _, self._answers = self._answers.partition(b"\n")
        return int(answer)

    def _written(self, file: IO[bytes] | None) -> Any:
        if file is None:
            return None
        file.seek(0)
        written = file.read()
        return written.decode(errors="replace") if self._text else written

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


def _kept(wanted: Any) -> IO[bytes] | None:
    """A file in place of a pipe, because a file is never full."""
    return tempfile.TemporaryFile() if wanted == PIPE else None


def _descriptor(wanted: Any, kept: IO[bytes] | None, inherited: int) -> int:
    if kept is not None:
        return kept.fileno()
    if wanted == DEVNULL:
        return os.open(os.devnull, os.O_WRONLY)
    return inherited if wanted is None else int(wanted.fileno())


def start_server() -> None:
    """Start the server that forks commands, for this process and those that it starts."""
    # The path of a socket has at most 107 characters.
    folder = tempfile.TemporaryDirectory(prefix="crammed-tests-", dir="/tmp")
    os.environ[_ADDRESS] = f"{folder.name}/server"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[_ADDRESS])
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "support.server", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=PIPE,  # the server ends when our end of the pipe is closed, at the latest with us
            cwd=Path(__file__).resolve().parents[1],
            # a command of ours, which may be the one to start it, looks for no modules there
            env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        )
    atexit.register(folder.cleanup)
    atexit.register(server.communicate)
