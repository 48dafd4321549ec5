"""Signals that ask the process to stop, before and between the parts that can be interrupted.

A command that another process started may also have to stop when that one does (`STARTER`).

It imports next to nothing, so that the command line can be stopped while it still imports the rest.
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

SAID = "interrupted; what is finished is kept"
STARTER = "CRAMMED_STARTER"
"""The variable that holds the process id of who started a command that is to end with it."""
_SECONDS_BETWEEN_LOOKS = 1.0
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


def follow_starter() -> None:
    """Stop as by SIGTERM once the process that `STARTER` names has ended, in whatever way."""
    named = os.environ.pop(STARTER, "")  # which is not for what this process starts
    if named.isdecimal():
        threading.Thread(target=_follow, args=(int(named),), daemon=True).start()


def _follow(starter: int) -> None:
    try:
        select.select([os.pidfd_open(starter)], [], [])
    except ProcessLookupError:  # it has ended already
        pass
    except (AttributeError, OSError):  # another system than Linux, or an old one
        with suppress(ProcessLookupError):
            while True:
                os.kill(starter, 0)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
