"""The directory of a run: its configuration, what happened, and what came out.

config.json     the resolved configuration, saved before anything else is done
choice.json     which of its values followed from the budget, and the measured speed of the device
env.json        versions and machine
corpus/         the corpus that `crammed run` prepared, unless it was given one
metrics.jsonl   one object for each log point
events.jsonl    stages, held-out measurements, checkpoints, resumes, spikes, divergence, other work
heartbeat.json  seconds charged and joules at the last log point: work lost in a crash is charged
checkpoints/    only while training
final/          weights, configuration and tokenizer of the trained model, and their hashes
export/         the same as a Hugging Face folder
evaluation/     scores, and the predictions behind them (crammed.evaluation.folder)
summary.json    the result; the last file that training writes
report.html
tensorboard/, wandb/, tracker.log    what crammed.tracking makes, if asked for
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from crammed.config import RunConfig
from crammed.config.corpus import SourceConfig
from crammed.config.kinds import flat
from crammed.config.migration import migrate
from crammed.config.yamlfile import validated
from crammed.errors import InputError
from crammed.files.faults import disk_faults
from crammed.files.folders import empty, missing_folders, remove_if_empty, sync_all
from crammed.files.locks import FolderLock
from crammed.files.regular import open_to_append, read_text
from crammed.files.writing import read_json, write_json
from crammed.machine.energy import Meter
from crammed.rules.choosing import Choice, values_of
from crammed.rules.sizing import with_values
from crammed.runs.environment import environment
from crammed.runs.logs import ANEW
from crammed.runs.summary import Summary, read_summary

T = TypeVar("T")
_BEFORE_CONFIG = re.compile(r"\.lock|env\.json|\.(env|config)\.json(\.\d+)?\.tmp")
"""What a process may leave behind if it ends before it has saved the configuration."""

LOGS = ("metrics.jsonl", "events.jsonl")

_LONGEST = 1e11  # seconds, ten times the largest budget


class RunDir:
    """An open run directory, locked against a second process.

    Attributes:
        choice: how its values were chosen; empty in runs of older versions.
        energy: measures the energy that training uses.
    """

    def __init__(self, path: Path, config: RunConfig, *, created: bool) -> None:
        self.path = path
        self.config = config
        self.choice = Choice()
        self.energy = Meter()
        self._created = created
        self._made = missing_folders(path)
        self._lock = FolderLock(path)
        with self._lock.released_on_error():
            # By processes that were killed.
            for half_written in (*path.glob(".*.json*.tmp"), *path.glob(".report.html.*.tmp")):
                half_written.unlink()

    @classmethod
    def open(cls, path: Path, config: RunConfig, choice: Choice | None = None) -> RunDir:
        """Create a run directory, or open one that holds the same configuration.

        A directory that holds only a corpus so far also takes another configuration, if that
        prepares the same corpus. What to do about divergence may always change.

        Args:
            choice: how the values were chosen; None if they are still to be chosen (`decide`).

        Raises:
            InputError: it holds another configuration or something else, or is in use.
        """
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: choose another --out")
        saved = path / "config.json"
        if saved.exists():
            found = read_config(path)
            another = found.identity() != config.identity()
            before = read_choice(path) or Choice()
            again = before.busy and choice not in (None, before)
            if another and not takes_another(path, found, config):
                raise another_run(path, differences(found, config))
            run = cls(path, config, created=False)
            run.choice = before
            with run._lock.released_on_error():
                if another:
                    # forget what the earlier configuration was charged, and what it began with
                    (path / "heartbeat.json").unlink(missing_ok=True)
                    run.event(ANEW)
                if another or again:
                    run.decide(config, choice)
                elif found.train.divergence != config.train.divergence:
                    write_json(saved, config.model_dump(mode="json"))
            return run
        if path.exists() and not all(_BEFORE_CONFIG.fullmatch(f.name) for f in path.iterdir()):
            raise InputError(f"{path} holds something that is not a run: choose another --out")
        run = cls(path, config, created=True)
        with run._lock.released_on_error():
            try:
                write_json(path / "env.json", environment())
                run.decide(config, choice)
            except InputError:
                run.discard_if_new()
                raise
        return run

    def decide(self, config: RunConfig, choice: Choice | None) -> None:
        """Save the configuration of the run, and then how its values were chosen, if they were.

        A process that is killed in between leaves a configuration that may be chosen again.
        """
        (self.path / "choice.json").unlink(missing_ok=True)
        write_json(self.path / "config.json", config.model_dump(mode="json"))
        if choice is not None:
            write_json(self.path / "choice.json", choice.model_dump(mode="json"))
        self.config, self.choice = config, choice or Choice()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def discard_if_new(self) -> None:
        """Remove what this process created if it holds nothing worth keeping yet."""
        kept = ("metrics.jsonl", "corpus/manifest.json", ".corpus.preparing", "corpus/.preparing")
        if self._created and not any((self.path / name).exists() for name in kept):
            empty(self.path)
            remove_if_empty(self._made)

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def summary(self) -> Summary | None:
        """The result of training; None until it has finished."""
        return read_summary(self.path)

    def finish(self, summary: Summary) -> None:
        """Keep the result of training, which makes the run finished.

        Its logs reach the disk first: nothing could write the log points of a finished run again.
        """
        with disk_faults(self.path):
            sync_all(file for name in LOGS if (file := self.path / name).exists())
        write_json(self.path / "summary.json", summary.values())

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append one log point."""
        self._append("metrics.jsonl", record)

    def event(self, name: str, /, **fields: Any) -> None:
        """Append an event with the current time."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append("events.jsonl", {"event": name, "at": now, **fields})

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        with disk_faults(self.path), open_to_append(self.path / name) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a record that a crash cut short stays on its own line
                    file.write(b"\n")
            file.write(line.encode())

    def heartbeat(self, charged_seconds: float) -> None:
        """Record the seconds charged so far, and the energy used if it is known."""
        beat, joules = {"charged_s": charged_seconds}, self.energy.joules()
        beat |= {} if joules is None else {"joules": joules}
        write_json(self.path / "heartbeat.json", beat, sync_folder=False)  # one may be lost

    def last_heartbeat(self) -> float:
        """Seconds charged at the last log point of any process; 0 before the first one."""
        file = self.path / "heartbeat.json"
        beat = {"charged_s": 0.0, **(read_json(file) or {})}
        seconds = beat["charged_s"]
        if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST:
            raise InputError(
                f"{file} is damaged: its 'charged_s' is not a possible number of seconds; "
                "restore it from a copy, or delete it (work lost in a crash is then not charged)"
            )
        return float(seconds)

    def last_joules(self) -> float | None:
        """Joules up to the last log point of any process; None if unknown, 0 before the first."""
        try:
            beat = read_json(self.path / "heartbeat.json")
        except InputError:  # `last_heartbeat` reports it where it matters
            return None
        joules: Any = 0.0 if beat is None else beat.get("joules")
        known = type(joules) in (int, float) and 0.0 <= joules < math.inf
        return float(joules) if known else None


def read_config(path: Path) -> RunConfig:
    """The configuration of the run in `path`, whichever version saved it.

    Raises:
        InputError: there is no run, or this version cannot read it.
    """
    file = path / "config.json"
    try:
        values = migrate(json.loads(read_text(file)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(_not_a_run(path)) from error
    if "model_type" in values:
        raise InputError(f"{path} is a model for transformers, not a run: name another folder")
    return validated(RunConfig, values, str(file))


def _not_a_run(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist: name the folder of a run"
    if runs := sorted(file.parent for file in path.glob("*/summary.json")):
        words = f"{path} is not a run, but has runs in it: name those, such as {runs[0]}"
        study = (path / "study.json").exists()
        return f"{words}, or {path}/*-0 for the first seed of each arm" if study else words
    return (
        f"{path} is not a run: it has no readable config.json; name another folder, or restore "
        "that file from a copy"
    )


def read_choice(path: Path) -> Choice | None:
    """How the values of the run in `path` were chosen; None if it has no record of that.

    Raises:
        InputError: the file is damaged.
    """
    file = path / "choice.json"
    values = read_json(file)
    return None if values is None else validated(Choice, values, str(file))


def read_scores_of(path: Path) -> dict[str, Any]:
    """The scores of the run in `path` so far, by suite."""
    scores = read_json(path / "evaluation" / "scores.json") or {"suites": {}}
    suites: dict[str, Any] = scores["suites"]
    return suites


def read_task_scores(path: Path) -> dict[str, dict[str, Any]]:
    """The scores of the run in `path` so far, by name; see `of_all_suites`."""
    scores = read_scores_of(path).items()
    return of_all_suites({suite: each.get("tasks", {}) for suite, each in scores})


def of_all_suites(suites: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """What several suites have by name, as one.

    A name that several have becomes ``SUITE.NAME``, as it is among the judges of a study.
    """
    times = Counter(name for found in suites.values() for name in found)
    return {
        f"{suite}.{name}" if times[name] > 1 else name: each
        for suite, found in suites.items()
        for name, each in found.items()
    }


def has_begun(path: Path) -> bool:
    """Whether the run in `path` has done an update."""
    # A run that was stopped before has a heartbeat, which charges its time.
    return any((path / name).exists() for name in ("metrics.jsonl", "checkpoints"))


def takes_another(path: Path, old: RunConfig, new: RunConfig) -> bool:
    """Whether the directory holds no training yet, and at most a corpus that suits `new`."""
    if has_begun(path):
        return False
    if not (path / "corpus" / "manifest.json").exists():
        if (path / ".corpus.preparing").exists():  # the parts that fit will be used
            return True
        choice = read_choice(path) or Choice()  # what is not chosen again must be the same
        return choice.busy and same_but_for(choice.follows, new, old)
    return (old.data, old.tokenizer) == (new.data, new.tokenizer)


def same_but_for(keys: Collection[str], new: RunConfig, old: RunConfig) -> bool:
    """Whether a configuration is that of a run once it has the run's values for these keys."""
    try:
        return with_values(new, values_of(old, keys)).identity() == old.identity()
    except InputError:  # its other values contradict them
        return False


def differing(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Both values of every key whose difference may change the result."""
    before, after = flat(old.complete()), flat(new.complete())
    if old.budget.limit == new.budget.limit:  # however it is written
        after["budget.limit"] = before["budget.limit"]
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not key.startswith(("compute.", "description", "train.divergence."))
    }


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """``KEY: VALUE there, VALUE here`` for every difference that may change the result."""
    values = differing(old, new).items()
    return [f"{key}: {_brief(there)} there, {_brief(here)} here" for key, (there, here) in values]


def _brief(value: Any) -> Any:
    """A value as a message shows it; of sources, only what is set."""
    if not (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return value
    usual = {**SourceConfig(path="").model_dump(mode="json"), "suite": None}
    chosen = ({k: own for k, own in each.items() if own != usual.get(k)} for each in value)
    return " and ".join(", ".join(f"{k} {own}" for k, own in each.items()) for each in chosen)


def another_run(path: Path, differences: Sequence[str]) -> InputError:
    """The refusal of a run in whose folder there is one with these differences."""
    more = ""
    if (path / "summary.json").exists() and any(each.startswith("budget") for each in differences):
        more = (
            f"; to go on with its model, type crammed adapt {path}, with --data, --budget and --out"
        )
    return InputError(
        f"{path} holds a run with another configuration ({', '.join(differences[:3])}): choose "
        f"another --out, or the same configuration to resume it{more}"
    )
