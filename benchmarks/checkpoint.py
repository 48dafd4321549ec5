"""The cost of writing a checkpoint that survives a power loss, and of checking it when it is read.

    python benchmarks/checkpoint.py [RECIPE] [key.path=value ...] [--rounds 5] [--folder DIR]
        [--out RESULT.json]

A real model and its optimizer are saved and restored as in training, in a folder on the disk to be
measured. Within the real calls, these parts are timed separately: syncing files to the disk,
hashing them, comparing hashes, and looking for values that are not finite.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer

from common import Training, config_of, described, finish, run, seconds_of, summary
from crammed.budget import Ledger, Work
from crammed.machine.device import choose_device
from crammed.runs.directory import RunDir
from crammed.training import checkpoint
from crammed.training.agenda import Agenda

PARTS = {
    # The name in the result, and the function that is timed.
    "sync": (os, "fsync"),
    "hash": (checkpoint, "write_hashes"),
    "finite": (checkpoint, "all_finite"),
    "compare": (checkpoint, "damage"),
}


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Recipe, overrides.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    folder: Annotated[Path, typer.Option(help="Where to write; removed again.")] = Path(),
    out: Path | None = None,
) -> None:
    config = config_of(words)
    device = choose_device(config.compute)
    training = Training(config, device, rows=1)
    training.update(0)  # before this, the optimizer has no state
    ledger = Ledger(())
    agenda = Agenda(config.train, ledger, lambda seconds: True)
    spent: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with RunDir.open(Path(place) / "run", config) as opened:
            saving = checkpoint.Checkpoints(opened, training.step, ledger, agenda, device, "")
            load = partial(
                checkpoint.load_checkpoint, opened.checkpoints, training.step, corpus_sha256=""
            )
            for number in range(1, rounds + 1):
                for name, work in (
                    ("save", partial(saving.save, Work(updates=number))),
                    ("read", load),
                ):
                    with _parts() as parts:
                        spent[name].append(seconds_of(device, work))
                    for part, seconds in parts.items():
                        spent[f"{name} {part}"].append(seconds)
    result = described("checkpoint", config, words, device)
    result |= {
        "checkpoint_seconds": config.train.checkpoint_seconds,
        "seconds": {name: summary(each) for name, each in spent.items()},
    }
    finish(result, out)


@contextmanager
def _parts() -> Iterator[dict[str, float]]:
    """Seconds spent in each of `PARTS` within the context; only the parts that were called."""
    spent: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        return call

    patches = [
        mock.patch.object(owner, function, timed(name, getattr(owner, function)))
        for name, (owner, function) in PARTS.items()
    ]
    for patch in patches:
        patch.start()
    try:
        yield spent
    finally:
        for patch in patches:
            patch.stop()


if __name__ == "__main__":
    run(main)
