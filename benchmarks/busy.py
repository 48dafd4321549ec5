"""How fast small models train on a CPU, quiet and beside a busy process: threads against lanes.

    python benchmarks/busy.py [RECIPE] [key.path=value ...] [--sizes 2x128,4x128,4x256] [--rows 16]
        [--rounds 5] [--seconds 1.0] [--out RESULT.json]

All ways to use the cores take turns, and in each round everything is timed quiet and then beside a
busy process of one thread, which runs in a session of its own, as in another terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Annotated

import torch
import typer

from common import Json, Training, config_of, described, finish, run, summary
from crammed.errors import InputError
from crammed.machine.device import choose_device

WAYS = {
    "threads": "compute.lanes=1",
    "lanes": "compute.lanes={threads}",
    "one thread": "compute.lanes=1",
}
BEGINS = 0.2
"""Seconds in which a neighbour has begun."""


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    sizes: Annotated[str, typer.Option(help="Layers x width.")] = "2x128,4x128,4x256",
    rows: Annotated[int, typer.Option(min=1, help="Rows per update.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Turns for each.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.0, help="Least length of a turn.")] = 1.0,
    out: Path | None = None,
) -> None:
    threads = torch.get_num_threads()
    own = ["compute.device=cpu", f"batch.rows={rows}", *(words or [])]
    config = config_of(own)
    result = described("busy", config, own, choose_device(config.compute))
    result |= {"threads": threads, "rows": rows, "sizes": {}}
    for size in sizes.split(","):
        result["sizes"][size] = _timed(size, own, threads, rounds, seconds)
    finish(result, out)


def _timed(size: str, words: list[str], threads: int, rounds: int, seconds: float) -> Json:
    """Seconds of an update of a model of this size, each way, quiet and busy."""
    try:
        layers, width = (int(number) for number in size.split("x"))
    except ValueError as error:
        raise InputError(f"--sizes: {size!r} is not a size such as 2x128") from error
    loops: dict[str, Training] = {}
    for way, word in WAYS.items():
        shape = [f"model.layers={layers}", f"model.width={width}"]
        config = config_of([*words, *shape, word.format(threads=threads)])
        loops[way] = Training(config, choose_device(config.compute))
    took = {load: {way: list[float]() for way in WAYS} for load in ("quiet", "busy")}
    for number in range(rounds + 1):  # the first is to warm up
        for load, ways in took.items():
            with _neighbour(busy=load == "busy"):
                for way, loop in loops.items():
                    torch.set_num_threads(1 if way == "one thread" else threads)
                    ways[way].append(_turn(loop, seconds if number else 0.0))
    torch.set_num_threads(threads)
    return {
        load: {way: summary(each[1:]) for way, each in ways.items()} for load, ways in took.items()
    }


def _turn(loop: Training, seconds: float) -> float:
    """Seconds of an update, on average over a turn of at least `seconds`."""
    began, updates = time.perf_counter(), 0
    while not updates or time.perf_counter() - began < seconds:
        loop.update(updates)
        updates += 1
    return (time.perf_counter() - began) / updates


@contextmanager
def _neighbour(*, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    neighbour = Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        time.sleep(BEGINS)
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


if __name__ == "__main__":
    run(main)
