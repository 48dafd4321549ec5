"""The evaluation folder: what is finished is never done again.

evaluation.json                       which model, by which protocol
predictions/SUITE/TASK/trained-0.npz  outputs of one fine-tuned model on every labelled split
gold/SUITE/NUMBER.npz                 the labels that they are scored against
resampled/SUITE/NUMBER.npz            bootstrap resamples of the median over seeds
scores.json                           every score so far
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import Protocol
from crammed.errors import InputError
from crammed.evaluation.finetuning.outputs import Outputs, load, save
from crammed.files import FolderLock, read_json, write_json
from crammed.tasks.rows import Rows

SCHEMA = 2


class EvaluationFolder:
    """An evaluation folder, locked against a second process.

    Args:
        model: what identifies the model; ``sha256`` decides, ``name`` is for people.
        protocol: the hyperparameters; the number of seeds is free.

    Raises:
        InputError: the folder holds something else, another model or another protocol, or is in
            use.
    """

    def __init__(self, folder: Path, model: dict[str, Any], protocol: Protocol) -> None:
        self.folder = folder
        settings = protocol.hyperparameters()
        described = folder / "evaluation.json"
        found = read_json(described)
        if found is None and folder.exists() and any(_visible(folder)):
            raise InputError(f"{folder} holds something that is no evaluation: choose another")
        if found is not None:
            _refuse_other(folder, found, model, settings)
        self._lock = FolderLock(folder)
        self._created = found is None
        if found is None:
            write_json(described, {"schema": SCHEMA, "model": model, "protocol": settings})

    def __enter__(self) -> EvaluationFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._created and kind is InputError and not self.scores()["suites"]:
            shutil.rmtree(self.folder)  # nothing was evaluated in it
        self._lock.release()

    @property
    def _scores_file(self) -> Path:
        return self.folder / "scores.json"

    def keep_gold(self, suite: str, number: str, rows: Rows, about: dict[str, Any]) -> None:
        """Keep what the outputs of a number are scored against."""
        file = self.folder / "gold" / suite / f"{number}.npz"
        counts = [len(t) for t in rows.texts] if about["task"]["kind"] == "tokens" else []
        about = {**about, "groups": rows.groups, "choices": rows.choices, "index": rows.index}
        save(file, {"labels": rows.labels, "counts": np.asarray(counts, np.int64)}, about)

    def keep_resampled(self, suite: str, number: str, medians: NDArray[np.float64]) -> None:
        """Keep a number's bootstrap resamples, from which intervals of means are taken."""
        save(self.folder / "resampled" / suite / f"{number}.npz", {"medians": medians}, {})

    def resampled(self, suite: str, number: str) -> NDArray[np.float64] | None:
        """What `keep_resampled` kept."""
        loaded = load(self.folder / "resampled" / suite / f"{number}.npz")
        return loaded[0]["medians"] if loaded is not None else None

    def scores(self) -> dict[str, Any]:
        """Every score so far."""
        return stored(self.folder)

    def save_suite(self, suite: str, values: dict[str, Any]) -> None:
        """Write the scores of a suite beside those of the others."""
        scores = self.scores()
        scores["suites"][suite] = values
        write_json(self._scores_file, scores)


def _visible(folder: Path) -> list[Path]:
    """What a person put there; a lock and half-written files are what a killed process left."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _refuse_other(
    folder: Path, found: dict[str, Any], model: dict[str, Any], settings: dict[str, Any]
) -> None:
    if found["model"]["sha256"] != model["sha256"]:
        raise InputError(
            f"{folder} holds scores of another model, {found['model']['name']}: choose another "
            "folder with --into"
        )
    changes = [
        f"{name} {found['protocol'].get(name)} there, {value} here"
        for name, value in settings.items()
        if found["protocol"].get(name) != value
    ]
    if changes:
        raise InputError(
            f"{folder} holds scores by another protocol ({', '.join(changes)}): choose another "
            "folder with --into"
        )


def stored(folder: Path) -> dict[str, Any]:
    """The scores in an evaluation folder.

    Raises:
        InputError: it is none.
    """
    described = read_json(folder / "evaluation.json")
    if described is None:
        raise InputError(f"{folder} holds no evaluation: evaluate that model first")
    return read_json(folder / "scores.json") or {**described, "suites": {}}


def gold_of(folder: Path, suite: str, number: str) -> tuple[Rows, dict[str, Any]]:
    """The rows that `keep_gold` kept, without their texts, and what it was told of them.

    Raises:
        InputError: they are gone.
    """
    arrays, about = _loaded(folder / "gold" / suite / f"{number}.npz")
    count = len(arrays["labels"]) * about["choices"]
    texts = [("",) * n for n in arrays["counts"].tolist()] or [("",)] * count
    return Rows(texts, arrays["labels"], about["choices"], about["groups"], about["index"]), about


def kept_outputs(folder: Path, suite: str, task: str, seed: int) -> Outputs:
    """What a fine-tuned model predicted.

    Raises:
        InputError: that is gone.
    """
    return _loaded(prediction_file(folder, suite, task, seed, trained=True))[0]


def prediction_file(folder: Path, suite: str, task: str, seed: int, *, trained: bool) -> Path:
    """Where the outputs of one fine-tuned model are kept."""
    which = "trained" if trained else "untrained"
    return folder / "predictions" / suite / task / f"{which}-{seed}.npz"


def tested_name(file: str, sha256: str) -> str:
    """What outputs on the rows of a leaderboard's file are called.

    Those on other rows have another name: a job that predicted rows that have changed since is
    not finished, and its outputs are never put beside the new rows.
    """
    return f"test/{file}/{sha256[:16]}"


def _loaded(file: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    loaded = load(file)
    if loaded is None:
        raise InputError(f"{file} is gone: evaluate that model again")
    return loaded
