"""Services that draw what a run logs; each is imported only in the process that forwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
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
        files = import_extra("tensorboard.summary.writer.event_file_writer", *_ASKED["tensorboard"])
        self._events = import_extra("tensorboard.compat.proto.event_pb2", *_ASKED["tensorboard"])
        self._summaries = import_extra(
            "tensorboard.compat.proto.summary_pb2", *_ASKED["tensorboard"]
        )
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


class _Online:
    """Weights & Biases, or trackio, which has the same functions."""

    library = ""

    def __init__(self, run: Path) -> None:
        self._library = import_extra(self.library, *_ASKED[self.library])
        self._library.init(
            project=os.environ.get(f"{self.library.upper()}_PROJECT", "crammed"),
            config=read_config(run).without_folders(),
            resume="allow",
            **self._identity(run),
        )

    def _identity(self, run: Path) -> dict[str, Any]:
        """What the service knows a run by."""
        raise NotImplementedError

    def log(self, update: int, values: Mapping[str, float]) -> None:
        self._library.log(dict(values), step=update)

    def finish(self) -> None:
        self._library.finish()


class WandB(_Online):
    """A run of Weights & Biases; where to, and whether offline, is up to its own settings."""

    library = "wandb"

    def _identity(self, run: Path) -> dict[str, Any]:
        return {"name": run.resolve().name, "id": _own(run), "dir": str(run)}


class Trackio(_Online):
    """A run of trackio, which keeps everything on this machine unless told otherwise."""

    library = "trackio"

    def _identity(self, run: Path) -> dict[str, Any]:
        # By its name it finds a run to go on with.
        return {"name": f"{run.resolve().name}-{_own(run)[:6]}"}


def _own(run: Path) -> str:
    """What is unique to a run, wherever the folder above its own is.

    ``env.json`` alone is not: the runs of a study may begin in the same second.
    """
    return json_hash([run.resolve().name, sha256(run / "env.json")])[:16]


_ASKED = {name: (name, f"compute.track={name}") for name in ("tensorboard", "wandb", "trackio")}
"""The extra of each service, and what asks for it."""

SERVICES: Mapping[str, Callable[[Path], Service]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}
