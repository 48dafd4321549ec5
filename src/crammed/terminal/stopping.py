"""Signals that ask the process to stop, before and between the parts that can be interrupted.

A command can also be told to stop when the process that started it ends (`STARTER`).

This module imports very little, so that the command line can be stopped while it imports the rest.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from crammed.errors import Interrupted

STARTER = "CRAMMED_STARTER"
"""Environment variable with the id of a process; the command stops when that process ends."""
_SECONDS_BETWEEN_LOOKS = 1.0
_IMPORT = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a process to stop; SIGHUP unless it is ignored, as under ``nohup``."""
    asked = [signal.SIGINT, signal.SIGTERM]
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*asked, signal.SIGHUP]


def importing(frame: FrameType | None) -> bool:
    """Whether a signal arrived during an import."""
    while frame is not None:
        if frame.f_code.co_filename in _IMPORT:
            return True
        frame = frame.f_back
    return False


def leave(*_: object) -> NoReturn:
    """A signal handler that says so and ends the process and its workers at once.

    For use during an import: libraries may swallow an exception raised in the middle of it, or fail
    to import again afterwards. Files on disk are as safe as under ``kill -9``.
    """
    try:
        if "multiprocessing.process" in sys.modules:
            for process in sys.modules["multiprocessing.process"].active_children():
                process.terminate()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.write("error: interrupted\n")
            sys.stderr.flush()
        finally:
            os._exit(Interrupted.exit_code)


def follow_starter() -> None:
    """Stop as on SIGTERM once the process that `STARTER` names has ended for any reason."""
    named = os.environ.pop(STARTER, "")  # processes started from here must not inherit it
    if named.isdecimal():
        threading.Thread(target=_follow, args=(int(named),), daemon=True).start()


def _follow(starter: int) -> None:
    try:
        select.select([os.pidfd_open(starter)], [], [])
    except ProcessLookupError:  # it has ended already
        pass
    except (AttributeError, OSError):  # not Linux, or an old kernel
        with suppress(ProcessLookupError):
            while True:
                os.kill(starter, 0)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
