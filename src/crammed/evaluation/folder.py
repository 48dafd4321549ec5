"""The evaluation folder: whatever it holds is not computed again.

evaluation.json                       the model and the protocol that the folder belongs to, and the
                                      CPU threads of each fine-tuned model
predictions/SUITE/TASK/trained-0.npz  one fine-tuned model's outputs for every split, or untrained-0
gold/SUITE/SCORE.npz                  the labels that outputs are scored against
resampled/SUITE/SCORE.npz             bootstrap resamples of the median over seeds
told/SUITE/SCORE.json                 confusion matrix and surest mistakes of the median seed
scores.json                           every score so far, the versions and the machine
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crammed.config import Protocol
from crammed.config.yamlfile import validated
from crammed.errors import InputError
from crammed.evaluation.backbones.base import Backbone
from crammed.evaluation.backbones.spec import local_digest
from crammed.evaluation.finetuning.arrays import Arrays, load_arrays, save_arrays
from crammed.evaluation.scores.judged import Told
from crammed.evaluation.scores.score import suite_means
from crammed.files.folders import empty, inside, missing_folders, remove_if_empty
from crammed.files.locks import FolderLock
from crammed.files.regular import refuse_link
from crammed.files.writing import read_json, write_json
from crammed.model.trained import has_trained_model
from crammed.runs.environment import environment
from crammed.sentences import marks
from crammed.tasks.rows import Rows
from crammed.tasks.task import Suite

SCHEMA = 2
_HALF_WRITTEN = re.compile(r"\..+\.(json|npz)\.\d+\.tmp")
"""Files that killed processes leave here."""
MOST_THREADS = 4096
ELSEWHERE = "choose another folder with --into"
"""What to do where the folder holds other scores."""


def default_folder(model: str, protocol: str | Protocol | None) -> Path:
    """The folder for a model's scores if none is given.

    Args:
        model: a run directory, a Hugging Face folder or a name on the hub.
        protocol: name or file of the protocol, if one was given; others do not count.

    Raises:
        InputError: it is a link.
    """
    suffix = f"-{Path(protocol).stem}" if isinstance(protocol, str) else ""
    if has_trained_model(Path(model)):
        return refuse_link(Path(model) / f"evaluation{suffix}")
    name = _path_name(Path(model)) if Path(model).exists() else model.strip("/.")
    return refuse_link(Path("evaluations") / (re.sub(rf"[^\w{marks()}.-]+", "-", name) + suffix))


def _path_name(path: Path) -> str:
    """The path relative to the working directory if below it; otherwise the last two names."""
    path, here = path.resolve(), Path.cwd()
    if path != here and path.is_relative_to(here):
        return str(path.relative_to(here))
    return "/".join(path.parts[1:][-2:])


def scores_folder(named: str, protocol: str | None) -> Path:
    """The evaluation folder itself if `named` is one, otherwise the default folder of that model.

    Raises:
        InputError: the default folder holds scores of another model.
    """
    own = Path(named)
    if (own / "evaluation.json").exists():
        return own
    folder = default_folder(named, protocol)
    if own.is_dir() and (folder / "evaluation.json").exists():
        model = read_scores(folder)["model"]
        if model["sha256"] != local_digest(own):
            raise InputError(
                f"{folder} holds scores of another model, {model['name']}, not of {named}: "
                f"evaluate {named} with --into FOLDER, and name FOLDER instead"
            )
    return folder


class EvaluationFolder:
    """An evaluation folder, locked against other processes.

    Args:
        backbone: the model; its ``sha256`` decides whether the folder belongs to it.
        protocol: the hyperparameters; the number of seeds may change.
        elsewhere: what to do where the folder holds other scores.

    Raises:
        InputError: the folder holds other files, or scores of another model or protocol, or is in
            use.
    """

    def __init__(
        self, folder: Path, backbone: Backbone, protocol: Protocol, elsewhere: str = ELSEWHERE
    ) -> None:
        self.path = folder
        model = {
            "name": backbone.name,
            "sha256": backbone.sha256,
            "parameters": backbone.parameters,
            "max_length": backbone.max_length,
        }
        settings = protocol.hyperparameters()
        described, found = folder / "evaluation.json", _described(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is not a folder: {elsewhere}")
        self._before = [*folder.iterdir()] if folder.exists() else []
        # Hidden files are locks, left behind by a killed process, or the user's own.
        if found is None and not all(path.name.startswith(".") for path in self._before):
            raise InputError(f"{folder} is not an evaluation folder: choose another")
        if found is not None and (other := _other(found, model, settings)):
            raise InputError(f"{folder} holds scores {other}: {elsewhere}")
        self._made = missing_folders(folder)
        self._lock = FolderLock(folder)
        self._created = found is None
        with self._lock.released_on_error():
            for file in folder.rglob(".*.tmp"):  # hidden files may be the user's own
                if _HALF_WRITTEN.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            self._environment = environment()
            if found is None:
                write_json(described, {"schema": SCHEMA, "model": model, "protocol": settings})

    def __enter__(self) -> EvaluationFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = self._created and kind is InputError
        if failed and not (self._fine_tuned() or read_scores(self.path)["suites"]):
            empty(self.path, self._before)
            remove_if_empty(self._made)
        self._lock.release()

    def _fine_tuned(self) -> bool:
        """Whether the predictions of a model are here."""
        return any(self.path.glob("predictions/**/*.npz"))

    def threads(self, usual: int) -> int | None:
        """CPU threads of each fine-tuning job in this folder: the same bits need the same number.

        Args:
            usual: what to keep to from now on, if nothing has been fine-tuned yet.

        Returns:
            None if an older version has fine-tuned here without keeping to a number.

        Raises:
            InputError: the number in ``evaluation.json`` is none.
        """
        described = self.path / "evaluation.json"
        found = read_json(described) or {}
        if "threads" not in found and not self._fine_tuned():
            found["threads"] = usual
            write_json(described, found)
        threads = found.get("threads")
        if threads is not None and not (type(threads) is int and 0 < threads <= MOST_THREADS):
            raise InputError(
                f"{described} is damaged: its 'threads' are {threads!r}; restore it from a copy"
            )
        return threads

    def numerics(self, now: str) -> list[str]:
        """The devices and number formats that models were fine-tuned with here before.

        Args:
            now: that of the models that follow, which is added.
        """
        described = self.path / "evaluation.json"
        found = read_json(described) or {}
        before = found.get("numerics", [])
        if not isinstance(before, list):
            raise InputError(
                f"{described} is damaged: its 'numerics' are {before!r}; restore it from a copy"
            )
        if now not in before:
            write_json(described, {**found, "numerics": [*before, now]})
        return before

    def save_gold(self, suite: str, name: str, rows: Rows, about: dict[str, Any]) -> None:
        """Save the labels that outputs are scored against, and a description for `read_gold`.

        Args:
            about: must contain ``task``, the task's settings.
        """
        counts = [len(t) for t in rows.texts] if about["task"]["kind"] == "tokens" else []
        about = {**about, "groups": rows.groups, "choices": rows.choices, "index": rows.index}
        about["positive"] = rows.positive
        arrays: Arrays = {"labels": rows.labels, "counts": np.asarray(counts, np.int64)}
        save_arrays(_named(self.path, f"gold/{suite}/{name}.npz"), arrays, about)

    def save_resampled(self, suite: str, name: str, medians: NDArray[np.float64]) -> None:
        """Save a score's bootstrap resamples, which the intervals of means need."""
        save_arrays(_named(self.path, f"resampled/{suite}/{name}.npz"), {"medians": medians}, {})

    def save_told(self, suite: str, name: str, told: dict[str, Any]) -> None:
        """Save how the median seed tells classes, for `read_told`."""
        write_json(_named(self.path, f"told/{suite}/{name}.json"), told)

    def scores(self, suite: str) -> dict[str, Any]:
        """The suite's scores so far."""
        scores: dict[str, Any] = read_scores(self.path)["suites"].get(suite, {"tasks": {}})
        return scores

    def save_suite(self, suite: str, values: dict[str, Any]) -> None:
        """Save the scores of a suite with what the folder is of, keeping those of other suites."""
        suites = {**read_scores(self.path)["suites"], suite: values}
        described = read_json(self.path / "evaluation.json") or {}
        whole = {**described, "environment": self._environment, "suites": suites}
        write_json(self.path / "scores.json", whole)

    def drop_failures(self, suite: str, but: Container[str]) -> None:
        """Drop what a suite has of failed tasks, such as tasks that the data no longer has.

        Args:
            but: the names of scores that are computed again.
        """
        scores = self.scores(suite)
        tasks = scores["tasks"].items()
        kept = {name: score for name, score in tasks if name in but or "failed" not in score}
        if len(kept) < len(tasks):
            self.save_suite(suite, {**scores, "tasks": kept})

    def save_tasks(self, suite: Suite, scores: dict[str, Any]) -> dict[str, Any]:
        """Order the scores of tasks as their suite does, take its means, and save both."""
        order = [name for task in suite.tasks.values() for name in task.numbers]
        scores["tasks"] = {n: scores["tasks"][n] for n in order if n in scores["tasks"]}
        files = {n: _named(self.path, f"resampled/{suite.name}/{n}.npz") for n in scores["tasks"]}
        loaded = {name: load_arrays(file) for name, file in files.items()}
        resampled = {name: found[0]["medians"] for name, found in loaded.items() if found}
        scores["means"] = suite_means(suite, scores["tasks"], resampled)
        self.save_suite(suite.name, scores)
        return scores


def _other(found: dict[str, Any], model: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """What other model or protocol the scores in a folder are of, in words."""
    if found["model"]["sha256"] != model["sha256"]:
        return f"of another model, {found['model']['name']}"
    there, here = map(Protocol.in_full, (found["protocol"], settings))
    changes = [
        f"{name} {there.get(name)} there, {value} here"
        for name, value in here.items()
        if there.get(name) != value
    ]
    return f"by another protocol ({', '.join(changes)})" if changes else None


def _described(folder: Path) -> dict[str, Any] | None:
    """What the folder is of; None if it is no evaluation folder."""
    found = read_json(folder / "evaluation.json")
    if found is None:
        return None
    model = found.get("model")
    whole = isinstance(model, dict) and {"name", "sha256"} <= model.keys()
    if whole and isinstance(found.get("protocol"), dict):
        return found
    raise InputError(
        f"{folder / 'evaluation.json'} is damaged: it says no model or no protocol; restore it "
        "from a copy"
    )


def read_scores(folder: Path) -> dict[str, Any]:
    """``{"schema", "model", "protocol", "suites": {name: scores}}`` of an evaluation folder.

    Those written since there was an ``"environment"`` also have that.

    Raises:
        InputError: it is not an evaluation folder, or its scores are damaged.
    """
    described = _described(folder)
    if described is None:
        raise InputError(f"{folder} holds no evaluation: evaluate that model first")
    try:
        scores = {**described, **(read_json(folder / "scores.json") or {"suites": {}})}
    except InputError:
        scores = {}
    if not _are_scores(scores):
        raise InputError(
            f"{folder / 'scores.json'} is damaged: remove it, and evaluate again; what was "
            "fine-tuned is kept"
        )
    return scores


def _are_scores(found: dict[str, Any]) -> bool:
    """Whether this has the shape of ``scores.json``."""
    suites = found.get("suites")
    if not isinstance(suites, dict) or not all(isinstance(s, dict) for s in suites.values()):
        return False
    tasks = [suite.get("tasks", {}) for suite in suites.values()]
    if not all(isinstance(each, dict) for each in tasks):
        return False
    entries = [entry for each in tasks for entry in each.values()]
    return all(
        isinstance(entry, dict)
        and all(isinstance(entry.get(name, 0.0), int | float) for name in ("median", "linear"))
        for entry in entries
    )


def read_told(folder: Path, suite: str, name: str) -> Told | None:
    """How the median seed tells classes; None in older evaluations.

    Raises:
        InputError: the file is damaged.
    """
    file = _named(folder, f"told/{suite}/{name}.json")
    values = read_json(file)
    return None if values is None else validated(Told, values, str(file))


def read_gold(folder: Path, suite: str, name: str) -> tuple[Rows, dict[str, Any]]:
    """What `EvaluationFolder.save_gold` saved: rows without their texts, and their description.

    Raises:
        InputError: the file is missing.
    """
    arrays, about = _required(_named(folder, f"gold/{suite}/{name}.npz"))
    count = len(arrays["labels"]) * about["choices"]
    texts = [("",) * n for n in arrays["counts"].tolist()] or [("",)] * count
    kept = {name: about[name] for name in ("choices", "groups", "index")}
    positive = about.get("positive", 1)  # missing in older evaluations
    return Rows(texts, arrays["labels"], **kept, positive=positive), about


def read_outputs(
    folder: Path, suite: str, task: str, seed: int, key: str | None = None
) -> dict[str, NDArray[np.float32]]:
    """The outputs for every split of the model fine-tuned with one seed.

    Args:
        key: of the job that the labels were saved with; None if an older version saved them.

    Raises:
        InputError: the file is missing, or of another job than the labels.
    """
    outputs, about = _required(outputs_file(folder, suite, task, seed, trained=True))
    if key is not None and about.get("key") != key:
        raise InputError(f"{folder}: {task} was not scored after its data changed: evaluate again")
    return outputs


def _named(folder: Path, name: str) -> Path:
    return inside(folder, name, f"scores in {folder}")


def outputs_file(folder: Path, suite: str, task: str, seed: int, *, trained: bool) -> Path:
    """The file that holds the outputs of one fine-tuned model."""
    which = "trained" if trained else "untrained"
    return _named(folder, f"predictions/{suite}/{task}/{which}-{seed}.npz")


def submission_key(file: str, sha256: str) -> str:
    """The key of the outputs for the rows of a leaderboard's file.

    It depends on the rows: if they have changed, the outputs for the old rows do not count as
    finished, and are never combined with the new rows.

    Args:
        sha256: digest of the rows.
    """
    return f"test/{file}/{sha256[:16]}"


def _required(file: Path) -> tuple[Arrays, dict[str, Any]]:
    loaded = load_arrays(file)
    if loaded is None:
        raise InputError(f"{file} is missing: evaluate that model again")
    return loaded
