"""Ends a process that waits for another one that will never respond."""

from __future__ import annotations

import os
import threading

from crammed.budget import format_seconds
from crammed.errors import PeerLost

PATIENCE = 1800.0
"""Seconds without a microbatch or a command after which a process gives up."""
_LOOKS = 20
"""How often the watchdog checks within that time."""


class Watchdog:
    """Ends this process with one line if nobody calls `beat` for `PATIENCE` seconds.

    It is a thread, because a process that waits for a GPU or for another process cannot watch the
    clock. It counts its checks, not seconds, so that time spent suspended does not count.
    """

    def __init__(self) -> None:
        self._alive = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """Report progress; the first call starts the watch."""
        self._alive = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(PATIENCE,), daemon=True)
            self._thread.start()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self, patience: float) -> None:
        idle = 0
        while not self._over.wait(patience / _LOOKS):
            idle = 0 if self._alive else idle + 1
            self._alive = False
            if idle == _LOOKS:
                words = (
                    f"error: no progress for {format_seconds(patience)}: another process of this "
                    "run hangs; end it, and repeat the same command to resume from the last "
                    "checkpoint\n"
                )
                os.write(2, words.encode())
                os._exit(PeerLost.exit_code)  # nothing else ends a process that waits for a GPU
