"""The process that forwards: ``python -P -m crammed.tracking.forward SERVICE RUN OFFSET OFFSET``.

It ends when its standard input does, which is when training ends, however that may be.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from crammed.errors import in_one_line
from crammed.files.regular import open_to_read
from crammed.files.writing import json_object
from crammed.runs.directory import LOGS
from crammed.tracking.services import SERVICES, Service

SECONDS_BETWEEN_LOOKS = 1.0
_PLACE = ("update", "event")


class Tail:
    """What a JSON-lines file gains.

    Args:
        offset: bytes that were there before.
    """

    def __init__(self, file: Path, offset: int) -> None:
        self._file, self._offset = file, offset

    def records(self) -> Iterator[dict[str, Any]]:
        """The whole objects that are new."""
        if not self._file.exists():
            return
        with open_to_read(self._file) as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from (each for each in map(json_object, whole.splitlines()) if each is not None)


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """What can be drawn of a log point or an event, whose numbers are named after it."""
    prefix = f"{record['event']}/" if "event" in record else ""
    return {
        f"{prefix}{name}": float(value)
        for name, value in record.items()
        if type(value) in (int, float) and math.isfinite(value) and name not in _PLACE
    }


def forward(service: Service, tails: list[Tail]) -> None:
    """Hand over what the logs gain until standard input ends."""
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], SECONDS_BETWEEN_LOOKS)[0])
        new = [each for tail in tails for each in tail.records()]
        placed = [each for each in new if isinstance(each.get("update"), int)]
        for record in sorted(placed, key=itemgetter("update")):  # W&B ignores a step back
            if values := numbers(record):
                service.log(record["update"], values)
    service.finish()


def main() -> None:
    """Forward until training ends; a failure is the last line of standard error."""
    os.nice(10)
    # The end of its input is what stops it. A handler, unlike SIG_IGN, is not passed on to others.
    signal.signal(signal.SIGTERM, lambda *_: None)
    name, run, offsets = sys.argv[1], Path(sys.argv[2]), map(int, sys.argv[3:])
    try:
        tails = [Tail(run / log, offset) for log, offset in zip(LOGS, offsets, strict=True)]
        forward(SERVICES[name](run), tails)
    except Exception as error:
        print(in_one_line(error), file=sys.stderr, flush=True)
        os._exit(1)  # a library's threads may still wait for its server


if __name__ == "__main__":
    main()
