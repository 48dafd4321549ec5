"""Forks a process for every Python command that `support.command` asks for.

Importing PyTorch, transformers and matplotlib takes far longer than most tests. This server has
imported them. The processes that it forks are like any others, with a process id, signals,
environment, folder, output and exit code of their own.

A request is one line of JSON, ``{"command": [...], "cwd": ..., "env": {...}, "session": ...}``, and
comes with the descriptors of standard output and error. The server answers with the process id at
once, and with the exit code, negative for a signal, when the process has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import Any, NoReturn

from support import disk
from support.command import forking

IMPORTED = (
    "crammed.cli.app",
    "crammed.interface.models",
    "crammed.interface.training",
    "crammed.report.page",
    "matplotlib.backends.backend_svg",
    "pandas",
    "scipy.stats",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "torch._dynamo",
    "transformers.models.modernbert.modeling_modernbert",
)


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each request until standard input ends; returns only in the process of a command."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            raise SystemExit
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _begin(asking)
        asking.close()


def _begin(asking: socket.socket) -> dict[str, Any]:
    """Fork again, into the command and a process that waits for it."""
    line, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 2)
    while not line.endswith(b"\n"):
        line += asking.recv(1 << 20)
    request: dict[str, Any] = json.loads(line)
    command = os.fork()
    if command:
        try:
            asking.sendall(f"{command}\n".encode())
        except OSError:  # the client is dead, so nobody waits for this command
            os.kill(command, signal.SIGKILL)
        _, status = os.waitpid(command, 0)
        with contextlib.suppress(OSError):
            asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    asking.close()
    for standard, given in zip((1, 2), descriptors, strict=True):
        os.dup2(given, standard)
        os.close(given)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return request


def become(request: dict[str, Any]) -> int:
    """Run the command as the interpreter would; returns its exit code."""
    subprocess.Popen = forking(subprocess.Popen)  # type: ignore[misc,assignment]
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    try:
        _run(request)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(request: dict[str, Any]) -> None:
    _, kind, *words = request["command"]
    safe = bool(os.environ.get("PYTHONSAFEPATH"))
    if kind in ("-m", "-c") and not safe:
        sys.path.insert(0, request["cwd"])
    if kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *words[1:]]
        exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        sys.argv = [kind, *words]
        runpy.run_path(kind, run_name="__main__")


def end(code: int) -> NoReturn:
    """End as the interpreter does, but without spending time on clearing all modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # transformers may be missing, as for some users
            importlib.import_module(name)
    disk.wait_for_nothing()
    gc.freeze()  # its pages stay shared
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        asked = serve(listening)
    end(become(asked))
