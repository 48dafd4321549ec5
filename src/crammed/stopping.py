"""Signals that ask the process to stop, before and between the parts that can be interrupted.

It imports next to nothing, so that the command line can be stopped while it still imports the rest.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from crammed.errors import Interrupted

SAID = "interrupted; what is finished is kept"
_IMPORT = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a process to stop; SIGHUP only if it is not ignored, as by ``nohup``."""
    asked = [signal.SIGINT, signal.SIGTERM]
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*asked, signal.SIGHUP]


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported where a signal has come."""
    while frame is not None:
        if frame.f_code.co_filename in _IMPORT:
            return True
        frame = frame.f_back
    return False


def leave(*_: object) -> NoReturn:
    """Say so and end the process and its workers at once; a handler of signals.

    For the time of an import: libraries swallow an exception that is raised in the middle of it, or
    cannot be imported again. What is on the disk is as safe as from ``kill -9``.
    """
    try:
        if "multiprocessing.process" in sys.modules:
            for process in sys.modules["multiprocessing.process"].active_children():
                process.terminate()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.write(f"error: {SAID}\n")
            sys.stderr.flush()
        finally:
            os._exit(Interrupted.exit_code)
