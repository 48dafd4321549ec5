"""Services that draw what a run logs; each is imported only in the process that forwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from crammed.extras import import_extra
from crammed.files.hashes import json_hash, sha256
from crammed.runs.directory import read_config


class Service(Protocol):
    """Where numbers go."""

    def log(self, update: int, values: Mapping[str, float]) -> None:
        """Take what was measured after an update."""

    def finish(self) -> None:
        """Take nothing more; return when everything is kept."""


class TensorBoard:
    """Event files in ``tensorboard/`` of the run, written without PyTorch."""

    def __init__(self, run: Path) -> None:
        files = _part("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._events = _part("tensorboard", "tensorboard.compat.proto.event_pb2")
        self._summaries = _part("tensorboard", "tensorboard.compat.proto.summary_pb2")
        self._writer = files.EventFileWriter(str(run / "tensorboard"))

    def log(self, update: int, values: Mapping[str, float]) -> None:
        value = self._summaries.Summary.Value
        scalars = [value(tag=name, simple_value=each) for name, each in values.items()]
        summary = self._summaries.Summary(value=scalars)
        self._writer.add_event(
            self._events.Event(wall_time=time.time(), step=update, summary=summary)
        )

    def finish(self) -> None:
        self._writer.close()


class Online:
    """Weights & Biases, or trackio, which has the same functions.

    Where to, and whether offline, is up to their own settings.
    """

    def __init__(self, library: str, run: Path) -> None:
        name, own = run.resolve().name, _own(run)
        if library == "wandb":
            identity = {"name": name, "id": own, "dir": str(run)}
        else:  # by its name, trackio finds a run to go on with
            identity = {"name": f"{name}-{own[:6]}"}
        self._library = _part(library, library)
        self._library.init(
            project=os.environ.get(f"{library.upper()}_PROJECT", "crammed"),
            config=read_config(run).without_folders(),
            resume="allow",
            **identity,
        )

    def log(self, update: int, values: Mapping[str, float]) -> None:
        self._library.log(dict(values), step=update)

    def finish(self) -> None:
        self._library.finish()


def _own(run: Path) -> str:
    """What is unique to a run, wherever the folder above its own is.

    ``env.json`` alone is not: the runs of a study may begin in the same second.
    """
    return json_hash([run.resolve().name, sha256(run / "env.json")])[:16]


def _part(service: str, library: str) -> Any:
    return import_extra(library, service, f"compute.track={service}")


SERVICES: Mapping[str, Callable[[Path], Service]] = {
    "tensorboard": TensorBoard,
    "wandb": partial(Online, "wandb"),
    "trackio": partial(Online, "trackio"),
}
