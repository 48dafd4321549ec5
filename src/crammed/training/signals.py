"""Stopping on a signal, between two updates or in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from crammed.terminal.stopping import stop_signals


class UpdateLeft(Exception):
    """A signal came while gradients were being computed; the update is abandoned."""


def leave_update(signals: list[str]) -> None:
    if signals:
        raise UpdateLeft


@contextmanager
def noted_signals() -> Iterator[list[str]]:
    """Add the names of SIGINT, SIGTERM and SIGHUP to a list instead of ending the process.

    A SIGINT after any of them interrupts at once, and SIGHUP stays ignored under ``nohup``. Signals
    that C code handles are left to it, for Python could not put its handler back. Outside the main
    thread, where Python handles no signals, the list stays empty.
    """
    received: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            before = old[signal.Signals(number)]
            if callable(before):  # it raises what the command line reports
                before(number, frame)
            raise KeyboardInterrupt
        received.append(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    ours = [each for each in stop_signals() if signal.getsignal(each) is not None]
    old = {number: signal.signal(number, note) for number in ours}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
