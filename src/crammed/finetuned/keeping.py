"""Fine-tunes an encoder on a task with every seed, and keeps the model of the median seed.

The scores are those of `crammed evaluate`, which leaves predictions and no weights; so the median
seed is fine-tuned once more, which takes as long as one of its seeds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crammed.config import Protocol
from crammed.errors import CrammedError, InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import Request, evaluate
from crammed.evaluation.finetuning.arrays import load_arrays
from crammed.evaluation.finetuning.task import LabelScale
from crammed.evaluation.folder import default_folder, read_outputs
from crammed.evaluation.protocol import protocol_for
from crammed.evaluation.scores.judged import Judged
from crammed.export.card import Metadata
from crammed.export.huggingface import importable
from crammed.extras import import_extra
from crammed.files.folders import check_vacant, new_folder
from crammed.files.scratch import scratch_folder
from crammed.files.writing import read_json, write_json, write_text
from crammed.finetuned.card import describe
from crammed.finetuned.folder import Description, write_model
from crammed.finetuned.prediction import Predictor
from crammed.model.trained import exported_model, has_trained_model
from crammed.tasks.read import all_tasks, folder_of, read_task, tasks_in
from crammed.tasks.rows import TaskData
from crammed.tasks.task import PAIRS, WITHOUT_FINETUNING, Suite, Task, load_suite, suite_names
from crammed.terminal.progress import Progress

TOLERANCE = 0.02
"""The largest difference between outputs before and after saving: other threads round otherwise."""


def keep(
    request: Request, out: Path, progress: Progress, license: str | None = None
) -> dict[str, Any]:
    """Fine-tune, and make a folder with the model of the median seed.

    Args:
        request: names at most one task, which the suite may have alone.
        out: the folder to make.
        license: for the model card, in place of that of the encoder.

    Returns:
        what `evaluate` returns of this task, with ``"model"``: the encoder's name, ``"out"``: the
        folder, ``"scores"``: those of the task by name, and ``"classes"``: how each class is told,
        see `Judged.classes`.

    Raises:
        InputError: the folder exists, the model or the task cannot be read, fine-tuning fails, or
            the licence is not a code.
        CrammedError: transformers computes other outputs from the folder.
    """
    check_vacant(out, "--out")
    Metadata(license)  # refuses what is not a code
    import_extra("transformers", "hf", "crammed finetune")
    protocol = protocol_for(request.model, request.protocol, request.seeds)
    if protocol.probe is not None:
        raise InputError("a probe trains no model to keep: name another --protocol")
    suite, task = _task_of(request, progress)
    own = has_trained_model(Path(request.model))
    model = str(exported_model(Path(request.model))) if own else request.model
    data = folder_of(request.data)
    with scratch_folder() as scratch:
        weights = scratch / "model.safetensors"
        asked = replace(
            request,
            model=model,
            tasks=(task.name,),
            protocol=protocol,
            into=request.into or _default_folder(model, request.protocol, own=own),
            keep=weights,
        )
        result = evaluate(asked, progress)
        read = read_task(task, data, suite, test=False)
        apart = result["protocol"].get("pairs") == "apart" and task.has_pairs
        encoder, source = BackboneSpec(request.model).files()
        described = _description(encoder, task, read, result, apart=apart)
        with new_folder(out) as folder:
            write_model(folder, source, weights, described)
            trust = "auto_map" in (read_json(folder / "config.json") or {})
            judged = _judged(folder, request, read, suite, result, weights.with_suffix(".npz"))
            metadata = Metadata.inherited(source, license)
            write_text(folder / "README.md", describe(described, judged, metadata, trust=trust))
    suites = {suite.name: {"tasks": described.scores, "means": []}}
    about = {"out": str(out), "scores": described.scores, "classes": judged.classes()}
    return {**result, "model": encoder, "suites": suites, **about}


def _default_folder(model: str, protocol: str | Protocol | None, *, own: bool) -> Path:
    """Where scores go, which an export has by its run's own protocol, unless one is named."""
    return default_folder(model, "finetuned" if own and protocol is None else protocol)


def _task_of(request: Request, progress: Progress) -> tuple[Suite, Task]:
    if request.suite in WITHOUT_FINETUNING:
        raise InputError(f"nothing is fine-tuned on {request.suite}: name a suite of tasks")
    suite = load_suite(request.suite)
    folder = folder_of(request.data)
    say = progress.line if request.suite in suite_names() else None
    named = tasks_in(suite, folder) if request.tasks else all_tasks(suite, folder, say)
    names = request.tasks or named
    if len(names) > 1:
        raise InputError(f"choose one task with --task: {', '.join(names)}")
    (task,) = suite.select(names)
    if task.kind == PAIRS:
        raise InputError(f"nothing is fine-tuned on {task.name}: score it with crammed evaluate")
    return suite, task


def _description(
    encoder: str, task: Task, data: TaskData, result: dict[str, Any], *, apart: bool
) -> Description:
    (scores,) = (each["tasks"] for each in result["suites"].values())
    return Description(
        task=task,
        labels=data.labels,
        max_length=result["max_length"],
        majority=data.train.majority_class() if task.kind == "tokens" else 0,
        apart=apart,
        scale=LabelScale.of(task.kind, data.train.labels),
        encoder=encoder,
        seed=result["seed"],
        scores={name: scores[name] for name in task.numbers if name in scores},
    )


def _judged(
    folder: Path,
    request: Request,
    data: TaskData,
    suite: Suite,
    result: dict[str, Any],
    retrained: Path,
) -> Judged:
    """The folder's model on the first of the scored splits, compared with the one fine-tuned.

    Args:
        retrained: outputs of the model that was fine-tuned again, whose weights are in the folder.
    """
    with importable(folder) as place:
        trust = request.trust_remote_code
        predictor = Predictor.load(place, request.compute, trust_remote_code=trust)
    file = folder / "config.json"
    write_json(file, {**(read_json(file) or {}), "architectures": [predictor.class_name]})
    name = next(iter(data.scored))
    task = predictor.description.task
    outputs, _ = predictor.outputs(data.scored[name])
    loaded = load_arrays(retrained)
    assert loaded is not None, "it was written with the weights"
    judged = loaded[0][name]
    difference = float(np.abs(outputs - judged).max())
    scale = predictor.description.scale
    largest = max(scale.deviation, float(np.abs(judged - scale.mean).max()))
    if not difference <= TOLERANCE * largest + 1e-6 * abs(scale.mean):  # the last is rounding
        raise CrammedError(
            f"the saved model's outputs differ by {difference:.3g} from those before saving: "
            "the model was discarded"
        )
    # The kept model is not quite the one that was scored on a GPU, which draws and rounds otherwise
    # for models fine-tuned side by side; with folds, it has seen the rows, and others are judged.
    if task.folds:
        place = Path(result["folder"])
        judged = read_outputs(place, suite.name, task.name, result["seed"])[name]
    return Judged(task, predictor.description.labels, name, data.scored[name], judged)
