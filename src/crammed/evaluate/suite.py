"""Every task with every seed, for the model and its untrained twin; finished jobs are kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crammed.config import FinetuneConfig
from crammed.device import Device
from crammed.errors import InputError
from crammed.evaluate.finetune import Finetuner
from crammed.evaluate.metrics import score
from crammed.evaluate.tasks import Task, read_task
from crammed.model.final import FinalModel
from crammed.progress import Progress

Scores = dict[str, Any]

NINE = ("mnli", "mnli-mm", "sst2", "stsb", "rte", "qnli", "qqp", "mrpc", "cola")
"""The nine numbers that the paper's GLUE mean is over (section 5)."""


def evaluate_tasks(
    final: FinalModel,
    tasks: Sequence[tuple[Task, Path]],
    protocol: FinetuneConfig,
    device: Device,
    progress: Progress,
    earlier: Scores | None = None,
    save: Callable[[Scores], None] = lambda _: None,
) -> Scores:
    """Fine-tune and score.

    A task that fails keeps its reason under ``failed`` and does not stop the others.

    Args:
        earlier: scores of an interrupted evaluation of the same model and protocol.
        save: called with the scores so far after every job.

    Returns:
        ``{"protocol", "tasks": {name: {"metric", "seeds", "median", ..., "untrained"}}, "mean"}``.
    """
    settings = protocol.model_dump(mode="json", exclude={"tasks", "seeds"})
    if earlier is not None and earlier.get("protocol") != settings:
        raise InputError("scores by another protocol are here: choose another --out")
    scores: Scores = earlier or {"protocol": settings, "tasks": {}}
    finetuner = Finetuner(final, protocol, device)
    jobs = len(tasks) * protocol.seeds * 2
    with progress.task("fine-tuning", jobs) as bar:
        done = 0
        for task, folder in tasks:
            entry = scores["tasks"].setdefault(task.name, {"metric": task.metric})
            entry.pop("failed", None)
            try:
                data = read_task(task, folder)
                train, validation = finetuner.encode(data)
                entry["rows"] = {"train": len(data.train), "validation": len(data.validation)}
                entry["official"] = data.official
                for trained in (True, False):
                    part = entry if trained else entry.setdefault("untrained", {})
                    part.setdefault("seeds", [])
                    for seed in range(len(part["seeds"]), protocol.seeds):
                        which = task.name if trained else f"{task.name}, untrained twin"
                        bar.update(done, f"{which}, seed {seed + 1} of {protocol.seeds}")
                        outputs = finetuner.run(task, train, validation, seed, trained=trained)
                        part["seeds"].append(_checked(task, outputs, validation.labels))
                        _summarise(part)
                        save(scores)
                        done += 1
            except (InputError, ValueError) as error:
                entry["failed"] = str(error)
                save(scores)
        bar.update(jobs, _words(scores))
    scores["mean"] = glue_mean(scores["tasks"])
    save(scores)
    return scores


def _checked(task: Task, outputs: np.ndarray[Any, Any], gold: np.ndarray[Any, Any]) -> float:
    if not np.isfinite(outputs).all():
        raise ValueError("fine-tuning diverged: outputs are not finite")
    return score(task.metric, outputs, gold)


def _summarise(part: dict[str, Any]) -> None:
    seeds = part["seeds"]
    part["median"] = statistics.median(seeds)
    part["spread"] = max(seeds) - min(seeds)


def _words(scores: Scores) -> str:
    parts = []
    for name, entry in scores["tasks"].items():
        if "failed" in entry:
            parts.append(f"{name} FAILED")
        else:
            parts.append(f"{name} {entry['median']:.1f} ({entry['untrained']['median']:.1f})")
    return "  ".join(parts)


def glue_mean(tasks: dict[str, Any]) -> float | None:
    """The paper's mean of nine numbers; None unless all nine are there on official splits."""
    values = []
    for name in NINE:
        entry = tasks.get(name)
        if entry is None or "failed" in entry or not entry["official"]:
            return None
        values.append(entry["median"])
    return statistics.fmean(values)
