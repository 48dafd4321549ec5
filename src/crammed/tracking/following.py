"""Starts the process that forwards a run's logs: whatever it does, training goes on as before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

from crammed.extras import import_extra
from crammed.files.regular import open_to_append, open_to_read
from crammed.runs.directory import LOGS
from crammed.terminal.progress import Progress

SAID = "tracker.log"
"""The file in a run's directory with all that the service prints."""
PATIENCE = 20.0
"""Seconds that the service has for the rest after training has ended."""
_TAIL = 2000


def check_tracker(service: str) -> None:
    """Refuse a service whose library is missing, without importing what is there.

    Raises:
        InputError: it is missing; the message names its extra.
    """
    if service != "none" and find_spec(service) is None:
        import_extra(service, service, f"compute.track={service}")


@contextmanager
def tracked(service: str, run: Path, progress: Progress) -> Iterator[None]:
    """Forward what the run logs meanwhile; a service that fails or hangs is said once."""
    if service == "none":
        yield
        return
    offsets = [str(_size(run / log)) for log in LOGS]
    command = [sys.executable, "-P", "-m", "crammed.tracking.forward", service, str(run), *offsets]
    with open_to_append(run / SAID) as said:
        process = subprocess.Popen(  # in a session of its own, which Ctrl-C does not reach
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
        )
    progress.line(f"track  {service} follows the run; what it prints is in {run / SAID}")

    given_up = Event()

    def wait() -> None:
        if process.wait() != 0 and not given_up.is_set():
            why = _last_line(run / SAID)
            progress.line(f"track  {service} failed, and the run goes on without it: {why}")

    watching = Thread(target=wait, daemon=True)
    watching.start()
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            watching.join(PATIENCE)
        finally:
            if process.poll() is None:
                given_up.set()
                process.kill()
                progress.line(f"track  {service} did not take everything within {PATIENCE:.0f} s")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _last_line(file: Path) -> str:
    with open_to_read(file) as stream:
        stream.seek(max(0, _size(file) - _TAIL))
        lines = stream.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")
